"""Tracks the outcome of each request's drafts and builds the engine core's rows.

The serving thread only notes what will be gone later: a request's lengths, and vLLM's own record of
the step, which no longer changes. Everything else is computed on the writer's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftscope.trace.format.records import RequestRow
from driftscope.trace.format.row_block import Block
from driftscope_probes.prompt_digests import PromptDigests
from driftscope_probes.vllm.scheduler.request_regions import RequestRegions
from driftscope_probes.vllm.scheduler.schedule import Limits, Schedule, undrafted_reason

REMEMBERED_REQUESTS = 65_536
"""Largest number of requests remembered at once, so that dropped ends leave no state for good."""


Served = tuple[Any, int, int, Any, int]
"""A request as a step found it: vLLM's Request, its number of tokens before the step's, the number
of prompt tokens among them, its RequestStatus at that time, and the number of tokens that the step
gave it."""
Step = tuple[float, Any, list[Served]]
"""A step with known outcome: its time, vLLM's SchedulerOutput, and the served requests. These are
plain tuples, because the serving thread creates them in every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request that ended, without what the writer's thread computes of it."""

    row: RequestRow
    request: Any
    """vLLM's Request, which no longer changes."""


_Verified = tuple[int, float, str, int, int, int, str | None, int]
_COLUMNS = ("step", "time_s", "request", "position", "drafted", "accepted", "reason", "replica")
"""Columns of a VerifyRow. Rows are plain tuples, because objects cost several times as much; a busy
server creates thousands of rows a second."""


@dataclass(slots=True)
class _RunningRequest:
    """State of a running request."""

    first_token_s: float | None = None
    last_token_s: float | None = None
    latest: Schedule | None = None
    """Schedule of the request's latest step, whose draft the next step verifies."""
    resumed: bool = False
    """Whether the request is back from a preemption and its tokens are being computed again."""


class VerificationTracker:
    """Builds the rows of steps, and of requests that ended."""

    def __init__(
        self,
        scheduler: Any,
        count_error: Callable[[str, BaseException], None],
        digests: PromptDigests | None = None,
        regions: RequestRegions | None = None,
    ) -> None:
        """`count_error` is called for a step that cannot be read, whose rows are lost; without
        `digests` or `regions`, requests get none."""
        self._limits, self._count_error = Limits(scheduler), count_error
        self._digests, self._regions = digests, regions
        self._live: OrderedDict[str, _RunningRequest] = OrderedDict()
        self._step = 0

    def rows(self, seen: list[Step | EndedRequest]) -> list[Block | RequestRow]:
        """Return a block of the drafts that the steps verified, then the requests that ended in
        them, with TTFT and TPOT filled in."""
        verified: list[_Verified] = []
        ended: list[Block | RequestRow] = []
        for each in seen:
            try:
                if isinstance(each, tuple):
                    verified += self._verified(each)
                else:
                    ended.append(self._ended(each))
            except Exception as error:  # a step that cannot be read must not cost the next one
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

    def _ended(self, ended: EndedRequest) -> RequestRow:
        row = self._with_regions(ended)
        live = self._live.pop(row.request, _RunningRequest())
        first, last = live.first_token_s, live.last_token_s
        spent = None if first is None or last is None else last - first
        digest, conversation = self._digests_of(ended.request)
        return replace(
            row,
            prompt_digest=digest,
            conversation=conversation,
            ttft_s=None if first is None else max(0.0, first - row.arrival_s),
            tpot_s=None
            if spent is None or row.output_tokens < 2
            else spent / (row.output_tokens - 1),
        )

    def _digests_of(self, request: Any) -> tuple[str | None, str | None]:
        """Return the digests of prompt and conversation; an error costs them, not the row."""
        if self._digests is None:
            return None, None
        try:
            return self._digests.of(request)
        except Exception as error:
            self._count_error("digest", error)
            return None, None

    def _with_regions(self, ended: EndedRequest) -> RequestRow:
        """Return the row with the answer's regions; an error costs them, not the row."""
        row = ended.row
        if self._regions is None:
            return row
        try:
            regions = self._regions.of(ended.request, row.structured)
        except Exception as error:
            self._count_error("regions", error)
            return row
        if regions is None:
            return row
        return replace(
            row,
            region_starts=regions.starts,
            region_codes=regions.codes,
            region_languages=regions.languages,
            region_boundaries=regions.boundaries,
            region_copies=regions.copies,
        )


def _block(rows: list[_Verified]) -> Block:
    columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Block(record="verify", rows=len(rows), columns=columns)
