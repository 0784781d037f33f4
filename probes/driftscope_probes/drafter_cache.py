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


class DrafterCache:
    """What is in doubt in one engine; nothing here loops over the requests of a usual step.

    ==========================  ================================================================
    `step(scheduled)`           what vLLM has scheduled is about to run
    `in_doubt(chunked=...)`     the drafter runs in this step: who has come into doubt since
    ==========================  ================================================================
    """

    def __init__(self) -> None:
        self._faulty = False
        """There are blocks with wrong or empty slots."""
        self._since: deque[Any] = deque(maxlen=KEPT_STEPS)
        """Steps since the drafter last ran, the one under way included."""

    def step(self, scheduled: Any) -> None:
        """A step begins, of a vLLM SchedulerOutput."""
        self._since.append(scheduled)

    def in_doubt(self, *, chunked: bool) -> tuple[str, ...]:
        """The drafter runs; `chunked`: for an unfinished prompt too."""
        if len(self._since) == 1 and not chunked and not self._faulty:  # as most often
            self._since.clear()
            return ()
        found: list[str] = []
        while self._since:
            scheduled = self._since.popleft()
            if self._since and scheduled.num_scheduled_tokens:  # it ran without the drafter
                self._faulty = True
                found += scheduled.num_scheduled_tokens
            # A hit may be on blocks that another request fills in this very step.
            self._faulty |= chunked and not self._since
            if self._faulty:
                found += _hits(scheduled)
        return tuple(found)


def _hits(scheduled: Any) -> list[str]:
    """Requests that begin, or go on after a preemption, behind blocks that were there."""
    found = [new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens]
    cached = scheduled.scheduled_cached_reqs
    if not cached.resumed_req_ids:
        return found
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [*found, *(name for name in cached.resumed_req_ids if computed[name])]
