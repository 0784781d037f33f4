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


Served = tuple[Any, int, int, Any, int]
"""A request as a step found it: vLLM's Request, its tokens before those of the step, its prompt's
among them, its RequestStatus then, and how many tokens the step gave it."""
Step = tuple[float, Any, list[Served]]
"""A step whose outcome is known: when, vLLM's SchedulerOutput, and whom it served. Plain tuples,
as every step makes them on the serving thread."""


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
        rows, all_live, admitted = [], self._live, schedule.admitted
        for request, length, prompt, status, tokens in served:
            if status.is_finished(status):
                continue
            name, has_output = request.request_id, length > prompt
            live = all_live.get(name)
            if live is None:
                live = all_live[name] = _Live()
            if admitted and has_output and name in admitted:
                live.resumed = True
            if tokens:
                again, live.resumed = live.resumed, False
                if has_output:
                    filled = not again and (live.latest is None or live.latest.drafts)
                    drafted = schedule.drafted(name) if filled else 0
                    rows.append(
                        _Verified(
                            self._step, time_s, name, length - 2, drafted,
                            tokens - 1 if drafted else 0,
                            None if drafted
                            else undrafted_reason(schedule, live.latest, request, again=again),
                        )
                    )  # fmt: skip
                live.first_token_s = live.first_token_s or time_s
                live.last_token_s = time_s
            live.latest = schedule
        while len(all_live) > REMEMBERED_REQUESTS:
            all_live.popitem(last=False)
        return rows

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
