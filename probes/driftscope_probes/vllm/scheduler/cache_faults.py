"""Whose slots in the drafter's KV cache vLLM's V1 runner has left wrong or empty.

At the end of each prompt chunk it embeds a wrong token, and in a step in which one request has no
room for K more slots it does not run the drafter for anybody. Both stay in the blocks, where the
prefix cache finds them for later requests. Nobody tells which hit covers such a block, so that from
then on every hit is in doubt.
"""

from __future__ import annotations

from collections import deque
from typing import Any

KEPT_STEPS = 256
"""Steps in a row without a draft of which it is remembered who ran; near a context's end there are
about K."""


class CacheFaultTracker:
    """What is in doubt in one engine: `step` is told of each, in order, on the writer's thread."""

    def __init__(self) -> None:
        self._faulty = False
        """There are blocks with wrong or empty slots."""
        self._since: deque[Any] = deque(maxlen=KEPT_STEPS)
        """Steps since the drafter last ran."""

    def step(self, scheduled: Any, *, drafted: bool, chunked: bool) -> tuple[str, ...]:
        """Who has come into doubt, with a step of a vLLM SchedulerOutput.

        `drafted`: the drafter ran in it; `chunked`: for an unfinished prompt too. While it does not
        run, nothing is told.
        """
        if drafted and not chunked and not self._faulty and not self._since:  # as most often
            return ()
        self._since.append(scheduled)
        if not drafted:
            return ()
        found: list[str] = []
        while self._since:
            before = self._since.popleft()
            if self._since and before.num_scheduled_tokens:  # it ran without the drafter
                self._faulty = True
                found += before.num_scheduled_tokens
            # A hit may be on blocks that another request fills in this very step.
            self._faulty |= chunked and not self._since
            if self._faulty:
                found += _hits(before)
        return tuple(found)


def _hits(scheduled: Any) -> list[str]:
    """Requests that begin, or go on after a preemption, behind blocks that were there."""
    found = [new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens]
    cached = scheduled.scheduled_cached_reqs
    if not cached.resumed_req_ids:
        return found
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [*found, *(name for name in cached.resumed_req_ids if computed[name])]
