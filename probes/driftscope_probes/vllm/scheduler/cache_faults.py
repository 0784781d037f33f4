"""Tracks requests whose slots in the drafter's KV cache vLLM's V1 runner has left wrong or empty.

At the end of each prompt chunk the runner embeds a wrong token. In a step in which one request has
no room for K more slots, it does not run the drafter for any request. Both faults stay in the
blocks, where later requests find them through the prefix cache. vLLM does not report which hit
covers such a block, so that from then on every hit may be wrong.
"""

from __future__ import annotations

from collections import deque
from typing import Any

KEPT_STEPS = 256
"""Number of consecutive steps without a draft whose requests are remembered; near the end of a
context there are about K such steps."""


class CacheFaultTracker:
    """Tracks cache faults of one engine; call `step` in order, on the writer's thread."""

    def __init__(self) -> None:
        self._faulty = False
        """Whether there are blocks with wrong or empty slots."""
        self._since: deque[Any] = deque(maxlen=KEPT_STEPS)
        """Steps since the drafter last ran."""

    def step(self, scheduled: Any, *, drafted: bool, chunked: bool) -> tuple[str, ...]:
        """Return the requests whose cache may be wrong from this step, a vLLM SchedulerOutput, on.

        `drafted`: the drafter ran in it; `chunked`: it also ran for an unfinished prompt. While the
        drafter does not run, the result is empty.
        """
        if drafted and not chunked and not self._faulty and not self._since:  # the usual case
            return ()
        self._since.append(scheduled)
        if not drafted:
            return ()
        requests: list[str] = []
        while self._since:
            before = self._since.popleft()
            if self._since and before.num_scheduled_tokens:  # the step ran without the drafter
                self._faulty = True
                requests += before.num_scheduled_tokens
            # A hit may be on blocks that another request fills in the same step.
            self._faulty |= chunked and not self._since
            if self._faulty:
                requests += _hits(before)
        return tuple(requests)


def _hits(scheduled: Any) -> list[str]:
    """Return requests that begin, or resume after preemption, with prefix-cache blocks."""
    hits = [new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens]
    cached = scheduled.scheduled_cached_reqs
    if not cached.resumed_req_ids:
        return hits
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [*hits, *(name for name in cached.resumed_req_ids if computed[name])]
