"""Token and speculation-round counts that a server reports for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftscope.boundary.bounds import MAX_K, MAX_ROUNDS, MAX_TOKENS
from driftscope.workloads.client.event_stream import BrokenStreamError
from driftscope.workloads.client.server_lookup import first_fault

Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Drafted = Annotated[int, Field(ge=0, le=MAX_K)]
Rounds = Annotated[int, Field(ge=0, le=MAX_ROUNDS)]


class _Checked(BaseModel):
    """Base model with strict JSON types; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Details(_Checked):
    cached_tokens: Tokens | None = None


class Usage(_Checked):
    """The `usage` object of an OpenAI-compatible server."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None


class Speculation(_Checked):
    """The `metrics.speculative_decoding` object, as vLLM sends it."""

    per_step_drafted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    per_step_accepted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    acceptance_histogram: Annotated[list[Rounds], Field(max_length=MAX_K + 1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one answer; None: the server does not report it."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: list[int] | None = None
    """Drafted tokens by round."""
    accepted: list[int] | None = None
    """Accepted tokens by round."""


def counts_of(usage: Any, speculation: Any) -> Counts:
    """Return the counts from unchecked JSON values; raises BrokenStreamError."""
    try:
        used = Usage.model_validate({} if usage is None else usage)
        drafting = Speculation.model_validate({} if speculation is None else speculation)
    except ValidationError as error:
        raise BrokenStreamError(f"impossible counts ({first_fault(error)})") from error
    drafted, accepted = rounds_of(drafting)
    details = used.prompt_tokens_details
    return Counts(
        prompt_tokens=used.prompt_tokens,
        output_tokens=used.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        drafted=drafted,
        accepted=accepted,
    )


def rounds_of(speculation: Speculation) -> tuple[list[int] | None, list[int] | None]:
    """Return drafted and accepted tokens per round; raise BrokenStreamError for more than
    MAX_ROUNDS.

    Without `per_step_...` (vLLM's level "summary") the accepted tokens come from the histogram and
    the drafted tokens of a round are unknown: (None, accepted).
    """
    drafted, accepted = speculation.per_step_drafted, speculation.per_step_accepted
    if accepted and drafted and len(accepted) == len(drafted):
        return drafted, accepted
    histogram = speculation.acceptance_histogram or []
    if sum(histogram) > MAX_ROUNDS:
        raise BrokenStreamError(f"impossible counts (more than {MAX_ROUNDS:,} rounds)")
    return None, [n for n, rounds in enumerate(histogram) for _ in range(rounds)] or None
