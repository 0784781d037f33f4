"""What became of each request's drafts, step by step: the engine core's rows, made of what it saw.

The serving thread only notes what will be gone: a request's lengths, and vLLM's own record of the
step, which nobody changes afterwards. What follows from it is worked out on the writer's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from driftscope.trace.block import Block
from driftscope.trace.records import RequestRow
from driftscope_probes.vllm_schedule import Limits, Schedule, undrafted_reason

REMEMBERED_REQUESTS = 65_536
"""Requests that are remembered at once, so that ends that were dropped leave nothing for good."""


class Served(NamedTuple):
    """A request as a step found it."""

    request_id: str
    num_tokens: int
    """Before the step's tokens."""
    num_output_tokens: int
    """Of them."""
    status: Any
    """vLLM's RequestStatus."""
    use_structured_output: bool
    tokens: int
    """That the step gave it."""


class Step(NamedTuple):
    """A step whose outcome is known."""

    time_s: float
    scheduled: Any
    """vLLM's SchedulerOutput."""
    served: list[Served]


class _Verified(NamedTuple):
    """The columns of a VerifyRow, which as an object costs several times as much to make."""

    step: int
    time_s: float
    request: str
    position: int
    drafted: int
    accepted: int
    reason: str | None
    replica: int = 0


@dataclass(slots=True)
class _Live:
    """What is remembered of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    latest: Schedule | None = None
    """Of the request's latest step, whose draft the next one verifies."""
    resumed: bool = False
    """Back from a preemption, with its tokens being computed once more."""


class Ledger:
    """Rows of steps, and of requests that ended."""

    def __init__(self, scheduler: Any, count_error: Callable[[str, BaseException], None]) -> None:
        """`count_error` is told of what cannot be read, which costs that step's rows."""
        self._limits, self._count_error = Limits(scheduler), count_error
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._step = 0

    def rows(self, seen: list[Step | RequestRow]) -> list[Block | RequestRow]:
        """A block of what some steps verified, then the requests that ended among them, whose TTFT
        and TPOT are filled in."""
        verified: list[_Verified] = []
        ended: list[Block | RequestRow] = []
        for each in seen:
            try:
                if isinstance(each, Step):
                    verified += self._verified(each)
                else:
                    ended.append(self._ended(each))
            except Exception as error:  # the border: one step that cannot be read is not the next
                self._count_error("verify", error)
        return [_block(verified), *ended] if verified else ended

    def _verified(self, step: Step) -> list[_Verified]:
        schedule = Schedule(step.scheduled, self._limits)
        self._step += 1
        rows = []
        for request in step.served:
            if request.status.is_finished(request.status):
                continue
            name = request.request_id
            live = self._live.get(name)
            if live is None:
                live = self._live[name] = _Live()
            if name in schedule.admitted and request.num_output_tokens > 0:
                live.resumed = True
            if request.tokens:
                again, live.resumed = live.resumed, False
                if request.num_output_tokens > 0:
                    rows.append(self._row(step.time_s, schedule, request, live, again))
                live.first_token_s = live.first_token_s or step.time_s
                live.last_token_s = step.time_s
            live.latest = schedule
        while len(self._live) > REMEMBERED_REQUESTS:
            self._live.popitem(last=False)
        return rows

    def _row(
        self, time_s: float, schedule: Schedule, request: Served, live: _Live, again: bool
    ) -> _Verified:
        filled = live.latest is None or live.latest.drafts
        drafted = schedule.drafted(request.request_id) if filled and not again else 0
        return _Verified(
            step=self._step,
            time_s=time_s,
            request=request.request_id,
            position=request.num_tokens - 2,
            drafted=drafted,
            accepted=request.tokens - 1 if drafted else 0,
            reason=None
            if drafted
            else undrafted_reason(schedule, live.latest, request, again=again),
        )

    def _ended(self, row: RequestRow) -> RequestRow:
        live = self._live.pop(row.request, _Live())
        first, last = live.first_token_s, live.last_token_s
        spent = None if first is None or last is None else last - first
        return replace(
            row,
            ttft_s=None if first is None else max(0.0, first - row.arrival_s),
            tpot_s=None if spent is None or row.output_tokens < 2
            else spent / (row.output_tokens - 1),
        )  # fmt: skip


def _block(rows: list[_Verified]) -> Block:
    columns = dict(zip(_Verified._fields, map(list, zip(*rows, strict=True)), strict=True))
    return Block(record="verify", rows=len(rows), columns=columns)
