"""Builds the scheduler's rows on the writer's thread: verifications, and requests that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from driftscope.trace.format.records import RequestRow
from driftscope.trace.format.row_block import Block
from driftscope.vocabulary import UndraftedReason
from driftscope_probes.prompt_digests import PromptDigests
from driftscope_probes.sglang.scheduler.request_regions import RequestRegions

REMEMBERED_REQUESTS = 65_536
"""Largest number of requests remembered at once, so that dropped ends leave no state for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request as a step served it."""

    request: str
    prompt: int
    """Number of prompt tokens."""
    outputs: int
    """Number of output tokens before the step's."""
    gained: int
    """Number of tokens that the step gave it."""
    decoding: bool
    """Whether the step decodes it, and does not prefill it."""
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a step."""

    time_s: float
    served: Sequence[Served]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """Token ids from which digests and regions of a request are computed; they are not kept."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    tokenizer: Any = None
    """The scheduler's tokenizer; None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A request that ended: its RequestRow without what the tracker computes."""

    time_s: float
    request: str
    label: str | None
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    temperature: float | None
    max_tokens: int | None
    traced: bool
    structured: str | None
    session: str | None
    pair: str | None
    tokens: RequestTokens


_Verified = tuple[int, float, str, int, int, int, str | None, int]
_COLUMNS = ("step", "time_s", "request", "position", "drafted", "accepted", "reason", "replica")
"""Columns of a VerifyRow."""


class RequestTracker:
    """Tracks running requests, and builds the rows of steps and of requests that ended."""

    def __init__(
        self,
        count_error: Callable[[str, BaseException], None],
        digests: PromptDigests | None = None,
        regions: RequestRegions | None = None,
    ) -> None:
        """`count_error` is called for a step that cannot be read, whose rows are lost; without
        `digests` or `regions`, requests get none."""
        self._count_error, self._digests, self._regions = count_error, digests, regions
        self._times: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Time of each running request's first and latest token."""
        self._step = 0

    def rows(self, seen: list[Outcome | FinishedRequest]) -> list[Block | RequestRow]:
        """Return a block of the drafts that the steps verified, then the requests that ended."""
        verified: list[_Verified] = []
        ended: list[Block | RequestRow] = []
        for each in seen:
            try:
                if isinstance(each, Outcome):
                    verified += self._verified(each)
                else:
                    ended.append(self._ended(each))
            except Exception as error:  # a step that cannot be read must not cost the next one
                self._count_error("verify", error)
        return [_block(verified), *ended] if verified else ended

    def _verified(self, outcome: Outcome) -> list[_Verified]:
        self._step += 1
        rows: list[_Verified] = []
        for each in outcome.served:
            if not each.gained:
                continue
            if each.outputs:
                position, reason = each.prompt + each.outputs - 2, _reason(each)
                drafted, accepted = each.drafted, each.accepted if each.drafted else 0
                row = self._step, outcome.time_s, each.request, position
                rows.append((*row, drafted, accepted, reason, 0))
            first, _ = self._times.get(each.request, (outcome.time_s, 0.0))
            self._times[each.request] = first, outcome.time_s
        while len(self._times) > REMEMBERED_REQUESTS:
            self._times.popitem(last=False)
        return rows

    def _ended(self, ended: FinishedRequest) -> RequestRow:
        times = self._times.pop(ended.request, None)
        own = {field.name: getattr(ended, field.name) for field in fields(ended)}
        tokens = own.pop("tokens")
        digest, conversation = self._digests_of(tokens)
        return RequestRow(
            **own,
            **self._regions_of(tokens, ended.structured),
            prompt_digest=digest,
            conversation=conversation,
            ttft_s=None if times is None else max(0.0, times[0] - ended.arrival_s),
            tpot_s=_per_token(times, ended.output_tokens),
        )

    def _digests_of(self, tokens: RequestTokens) -> tuple[str | None, str | None]:
        """Return the digests of prompt and conversation; an error costs them, not the row."""
        if self._digests is None:
            return None, None
        try:
            return self._digests.of(tokens)
        except Exception as error:
            self._count_error("digest", error)
            return None, None

    def _regions_of(self, tokens: RequestTokens, structured: str | None) -> dict[str, Any]:
        """Return the columns of the answer's regions; an error costs them, not the row."""
        if self._regions is None:
            return {}
        try:
            found = self._regions.of(tokens, structured)
        except Exception as error:
            self._count_error("regions", error)
            return {}
        if found is None:
            return {}
        return {
            "region_starts": found.starts,
            "region_codes": found.codes,
            "region_languages": found.languages,
            "region_boundaries": found.boundaries,
            "region_copies": found.copies,
        }


def _per_token(times: tuple[float, float] | None, tokens: int) -> float | None:
    """Return the mean time of the tokens after the first; None if there is none."""
    if times is None or tokens < 2:
        return None
    first, last = times
    return (last - first) / (tokens - 1)


def _reason(served: Served) -> str | None:
    """Return why a step had no draft to verify; None if it had one. A request that is prefilled
    although it has output was preempted; one that decodes joined a prefilling batch."""
    if served.drafted:
        return None
    return UndraftedReason.NO_DRAFT if served.decoding else UndraftedReason.PREEMPTED


def _block(rows: list[_Verified]) -> Block:
    columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Block(record="verify", rows=len(rows), columns=columns)
