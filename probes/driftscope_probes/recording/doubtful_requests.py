"""Remembers the requests whose slots in the drafter's cache may be wrong."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from driftscope_probes.steps.step_record import StepRecord
from driftscope_probes.steps.step_schedule import CacheFaults

REMEMBERED_REQUESTS = 65_536
"""Number of doubtful requests that are remembered, the latest."""


class DoubtfulRequests:
    """The requests that were prefilled in several steps, and those whose cache a runner spoilt."""

    def __init__(self, faults: CacheFaults | None) -> None:
        """`faults`: tracker of the runner's faults in the drafter's cache, if it has any."""
        self._faults = faults
        self.requests: OrderedDict[str, None] = OrderedDict()
        """The doubtful requests, in the order in which they became doubtful."""

    def mark(self, done: StepRecord, prefilling: frozenset[str]) -> None:
        """Mark the requests whose slots may be wrong from this step on."""
        drafted = done.k is not None
        names: Iterable[str] = sorted(prefilling) if drafted and prefilling else ()
        if self._faults is not None and done.scheduled is not None:
            doubtful = self._faults.step(done.scheduled, drafted=drafted, chunked=bool(prefilling))
            names = (*doubtful, *names) if doubtful else names
        if names:
            self.requests |= dict.fromkeys(names)
            while len(self.requests) > REMEMBERED_REQUESTS:
                self.requests.popitem(last=False)
