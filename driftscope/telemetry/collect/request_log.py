"""Round counts of finished requests, for their spans and labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from driftscope.telemetry.collect.instruments import OTHER_LABEL, REQUEST_LENGTH
from driftscope.telemetry.collect.region_counter import RegionCounter
from driftscope.telemetry.collect.tally import Tally

REMEMBERED_REQUESTS = 65_536
"""Most running requests that are tracked. The oldest is discarded, so that a request whose end is
never recorded does not leak memory."""
EVENTS = 8
"""Most rejected rounds that a request's span lists as events; its count covers all of them."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Rounds of one request so far."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    undrafted: int = 0
    first_rejected: list[tuple[float, int]] = field(default_factory=list)
    """Time, in Unix seconds, and position of the first EVENTS rejected rounds."""

    @property
    def mean_length(self) -> float | None:
        """Mean acceptance length, as `driftscope.metrics.acceptance.mean_length`; None without a
        round."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished request: its RequestRow by column, and its rounds."""

    row: dict[str, Any]
    rounds: Rounds


class RequestLog:
    """Follows requests through batches of `verify` and `request`."""

    def __init__(
        self, tally: Tally, labels: tuple[str, ...] = (), *, regions: bool = False
    ) -> None:
        """`labels`: the labels that become an attribute value; all others count as OTHER_LABEL.
        `regions`: whether rounds are also counted by kind of text."""
        self._tally, self._labels = tally, labels
        self._regions = RegionCounter(tally) if regions else None
        self._open: OrderedDict[str, Rounds] = OrderedDict()

    def verified(self, batch: pa.RecordBatch) -> None:
        """Count a batch of `verify`."""
        if self._regions is not None:
            self._regions.verified(batch)
        names = ("request", "drafted", "accepted", "time_s", "position")
        columns = (batch.column(name).to_pylist() for name in names)
        for request, drafted, accepted, time_s, position in zip(*columns, strict=True):
            counted = self._of(request)
            if not drafted:
                counted.undrafted += 1
                continue
            counted.rounds += 1
            counted.drafted += drafted
            counted.accepted += accepted
            if not accepted:
                counted.rejected += 1
                if len(counted.first_rejected) < EVENTS:
                    counted.first_rejected.append((time_s, position))

    def finished(self, batch: pa.RecordBatch) -> Iterator[Finished]:
        """Yield the requests of a batch of `request`, each with its rounds."""
        for row in batch.to_pylist():
            if self._regions is not None:
                self._regions.finished(row)
            rounds = self._open.pop(row["request"], None) or Rounds()
            if (length := rounds.mean_length) is not None:
                self._tally.observe(REQUEST_LENGTH, [length], **self.label_of(row))
            yield Finished(row=row, rounds=rounds)

    def label_of(self, row: dict[str, Any]) -> dict[str, str]:
        """Return the label attribute of a request; {} without an allow-list."""
        if not self._labels:
            return {}
        return {"label": row["label"] if row["label"] in self._labels else OTHER_LABEL}

    def _of(self, request: str) -> Rounds:
        counted = self._open.get(request)
        if counted is None:
            counted = self._open[request] = Rounds()
            while len(self._open) > REMEMBERED_REQUESTS:
                self._open.popitem(last=False)
        return counted
