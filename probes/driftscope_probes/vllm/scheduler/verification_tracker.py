"""What became of each request's drafts, step by step: the engine core's rows, made of what it saw.

The serving thread only notes what will be gone: a request's lengths, and vLLM's own record of the
step, which nobody changes afterwards. What follows from it is worked out on the writer's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftscope.trace.format.records import RequestRow
from driftscope.trace.format.row_block import Block
from driftscope_probes.vllm.scheduler.schedule import Limits, Schedule, undrafted_reason

REMEMBERED_REQUESTS = 65_536
"""Requests that are remembered at once, so that ends that were dropped leave nothing for good."""


Served = tuple[Any, int, int, Any, int]
"""A request as a step found it: vLLM's Request, its tokens before those of the step, its prompt's
among them, its RequestStatus then, and how many tokens the step gave it."""
Step = tuple[float, Any, list[Served]]
"""A step whose outcome is known: when, vLLM's SchedulerOutput, and whom it served. Plain tuples,
as every step makes them on the serving thread."""


_Verified = tuple[int, float, str, int, int, int, str | None, int]
_COLUMNS = ("step", "time_s", "request", "position", "drafted", "accepted", "reason", "replica")
"""Of a VerifyRow, which as an object costs several times as much to make; a busy server makes
thousands of them a second."""


@dataclass(slots=True)
class _RunningRequest:
    """What is remembered of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    latest: Schedule | None = None
    """Of the request's latest step, whose draft the next one verifies."""
    resumed: bool = False
    """Back from a preemption, with its tokens being computed once more."""


class VerificationTracker:
    """Rows of steps, and of requests that ended."""

    def __init__(self, scheduler: Any, count_error: Callable[[str, BaseException], None]) -> None:
        """`count_error` is told of what cannot be read, which costs that step's rows."""
        self._limits, self._count_error = Limits(scheduler), count_error
        self._live: OrderedDict[str, _RunningRequest] = OrderedDict()
        self._step = 0

    def rows(self, seen: list[Step | RequestRow]) -> list[Block | RequestRow]:
        """A block of what some steps verified, then the requests that ended among them, whose TTFT
        and TPOT are filled in."""
        verified: list[_Verified] = []
        ended: list[Block | RequestRow] = []
        for each in seen:
            try:
                if isinstance(each, tuple):
                    verified += self._verified(each)
                else:
                    ended.append(self._ended(each))
            except Exception as error:  # the border: one step that cannot be read is not the next
                self._count_error("verify", error)
        return [_block(verified), *ended] if verified else ended

    def _verified(self, step: Step) -> list[_Verified]:
        time_s, scheduled, served = step
        schedule = Schedule(scheduled, self._limits)
        self._step += 1
        rows: list[_Verified] = []
        number, every, admitted = self._step, self._live, schedule.admitted
        running = None
        for request, length, prompt, status, tokens in served:
            if status is not running:
                if status.is_finished(status):
                    continue
                running = status
            name, has_output = request.request_id, length > prompt
            live = every.get(name)
            if live is None:
                live = every[name] = _RunningRequest()
            if admitted and has_output and name in admitted:
                live.resumed = True
            if tokens:
                again, live.resumed = live.resumed, False
                if has_output:
                    before = live.latest
                    filled = not again and (before is None or before.drafts)
                    drafted = schedule.drafted(name) if filled else 0
                    if drafted:
                        accepted, reason = tokens - 1, None
                    else:
                        accepted = 0
                        reason = undrafted_reason(schedule, before, request, again=again)
                    rows.append((number, time_s, name, length - 2, drafted, accepted, reason, 0))
                if live.first_token_s is None:
                    live.first_token_s = time_s
                live.last_token_s = time_s
            live.latest = schedule
        while len(every) > REMEMBERED_REQUESTS:
            every.popitem(last=False)
        return rows

    def _ended(self, row: RequestRow) -> RequestRow:
        live = self._live.pop(row.request, _RunningRequest())
        first, last = live.first_token_s, live.last_token_s
        spent = None if first is None or last is None else last - first
        return replace(
            row,
            ttft_s=None if first is None else max(0.0, first - row.arrival_s),
            tpot_s=None
            if spent is None or row.output_tokens < 2
            else spent / (row.output_tokens - 1),
        )


def _block(rows: list[_Verified]) -> Block:
    columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Block(record="verify", rows=len(rows), columns=columns)
