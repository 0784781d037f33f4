"""Telemetry of a worker: its figures, published in a file that its engine core reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from driftscope.telemetry.collect.batch_counter import BatchCounter
from driftscope.telemetry.collect.process_figures import Shared, publish
from driftscope.telemetry.collect.status_figures import record_status
from driftscope.telemetry.collect.tally import Tally
from driftscope.telemetry.export.batch_order import together
from driftscope.trace.format.status import Status
from driftscope.trace.read.ranks import place_of
from driftscope.trace.write.record_files import Batch

PUBLISH_S = 1.0
"""Interval at which a worker rewrites its figures, in seconds."""


class WorkerTelemetry:
    """Figures of a worker, published for the engine core of its replica."""

    def __init__(self, run: Path, source: str, status: Callable[[], Status]) -> None:
        self._run, self._source, self._status = run, source, status
        self._tally = Tally()
        self._counter = BatchCounter(tally=self._tally, first_rank=place_of(source).rank == 0)
        self._waiting: list[Batch] = []
        self._published_s, self._stale = -PUBLISH_S, True

    def on_batches(self, batches: Sequence[Batch]) -> None:
        """Count the batches, and publish when due; runs on the writer's thread."""
        self._waiting.extend(batches)
        self._stale = self._stale or bool(batches)
        now = time.monotonic()
        if self._stale and now - self._published_s >= PUBLISH_S:
            self._published_s, self._stale = now, False
            self.publish()

    def publish(self) -> None:
        """Count the waiting batches and rewrite the file that the engine core reads."""
        waiting, self._waiting = self._waiting, []
        for record, batch in together(waiting):
            self._counter.take(record, batch)
        record_status(self._tally, self._status())
        points = self._tally.snapshot()
        chains = tuple(self._counter.notable)
        publish(self._run, Shared(source=self._source, points=points, chains=chains))
