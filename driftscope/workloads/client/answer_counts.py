"""What a server counts of an answer: its tokens, and the rounds of speculation."""

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
    """Types as they are in JSON; fields that nobody asks for are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Details(_Checked):
    cached_tokens: Tokens | None = None


class Usage(_Checked):
    """`usage` of an OpenAI-compatible server."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None


class Speculation(_Checked):
    """`metrics.speculative_decoding`, as vLLM gives it."""

    per_step_drafted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    per_step_accepted: Annotated[list[Drafted], Field(max_length=MAX_ROUNDS)] | None = None
    acceptance_histogram: Annotated[list[Rounds], Field(max_length=MAX_K + 1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """None: the server does not say."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: list[int] | None = None
    """Tokens by round."""
    accepted: list[int] | None = None
    """Tokens by round."""


def counts_of(usage: Any, speculation: Any) -> Counts:
    """From values of JSON that nobody has checked; raises BrokenStreamError."""
    try:
        used = Usage.model_validate({} if usage is None else usage)
        told = Speculation.model_validate({} if speculation is None else speculation)
    except ValidationError as error:
        raise BrokenStreamError(f"counts that cannot be right ({first_fault(error)})") from error
    drafted, accepted = rounds_of(told)
    details = used.prompt_tokens_details
    return Counts(
        prompt_tokens=used.prompt_tokens,
        output_tokens=used.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        drafted=drafted,
        accepted=accepted,
    )


def rounds_of(told: Speculation) -> tuple[list[int] | None, list[int] | None]:
    """Drafted and accepted tokens per round; raises BrokenStreamError for more than MAX_ROUNDS.

    Without `per_step_...` (vLLM's level "summary") the accepted ones come from the histogram, and a
    round's drafted tokens are not known: (None, accepted).
    """
    drafted, accepted = told.per_step_drafted, told.per_step_accepted
    if accepted and drafted and len(accepted) == len(drafted):
        return drafted, accepted
    histogram = told.acceptance_histogram or []
    if sum(histogram) > MAX_ROUNDS:
        raise BrokenStreamError(f"counts that cannot be right (more than {MAX_ROUNDS:,} rounds)")
    return None, [n for n, rounds in enumerate(histogram) for _ in range(rounds)] or None
