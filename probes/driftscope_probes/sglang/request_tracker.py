"""Builds the scheduler's rows on the writer's thread: verifications, and requests that ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftscope.trace.format.records import RequestRow
from driftscope.trace.format.row_block import Block
from driftscope.vocabulary import UndraftedReason

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
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a step."""

    time_s: float
    served: Sequence[Served]


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


_Verified = tuple[int, float, str, int, int, int, str | None, int]
_COLUMNS = ("step", "time_s", "request", "position", "drafted", "accepted", "reason", "replica")
"""Columns of a VerifyRow."""


class RequestTracker:
    """Tracks running requests, and builds the rows of steps and of requests that ended."""

    def __init__(self, count_error: Callable[[str, BaseException], None]) -> None:
        """`count_error` is called for a step that cannot be read, whose rows are lost."""
        self._count_error = count_error
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
        first, last = self._times.pop(ended.request, (None, None))
        many = ended.output_tokens > 1 and first is not None and last is not None
        return RequestRow(
            **{name: getattr(ended, name) for name in FinishedRequest.__slots__},
            ttft_s=None if first is None else max(0.0, first - ended.arrival_s),
            tpot_s=(last - first) / (ended.output_tokens - 1) if many else None,
        )


def _reason(served: Served) -> str | None:
    """Return why a step had no draft to verify: SGLang prefills a request again after it was
    preempted, and a decoding request joins a prefilling batch without a draft."""
    return None if served.drafted else UndraftedReason.PREEMPTED


def _block(rows: list[_Verified]) -> Block:
    columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Block(record="verify", rows=len(rows), columns=columns)
