"""Telemetry of the engine core: exports the figures of its engine.

A listener subscribes to a `TraceWriter` and counts on its thread. Exports and scrapes run on
threads of their own. Nothing here raises into a serving thread, and no serving thread waits for an
export or a scrape.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.engine_identity import Identity
from driftscope.telemetry.collect.request_log import Finished
from driftscope.telemetry.collect.tally import Key, Point, Snapshot, difference
from driftscope.telemetry.export.engine_figures import EngineFigures
from driftscope.telemetry.export.settings import METRICS, TRACES, Settings
from driftscope.trace.format.status import Status
from driftscope.trace.write.record_files import Batch

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

POLL_S = 0.5
"""Interval at which the engine core checks for due exports, in seconds."""
SETTLE_S = 3.0
"""Time for which a finished request waits for the chains that its workers recorded, in seconds: one
flush, one publication and one poll, with room to spare."""
WAITING_REQUESTS = 4096
CLOSE_S = 2.0
"""Longest time that closing waits for a collector, in seconds."""


class EngineTelemetry:
    """Telemetry of the engine core: counts its records, adds its workers' figures and exports all.

    =====================  ==========================================================
    `on_batches(batches)`  count batches; runs on the writer's thread
    `snapshot()`           every figure of the engine with its current value
    `identity()`           identity of the engine; None until its models are loaded
    `flush()`              send all current data, for at most CLOSE_S
    `close()`              flush a last time and stop
    =====================  ==========================================================

    Raises TelemetryError from the constructor when the settings cannot be
    met, such as a port that is taken.
    """

    def __init__(
        self,
        run: Path,
        source: str,
        settings: Settings,
        status: Callable[[], Status],
        *,
        model: str | None = None,
    ) -> None:
        """`model`: the name under which the engine serves the model."""
        from driftscope.telemetry.export.exporters import metric_exporter, span_exporter
        from driftscope.telemetry.export.sender import MetricSender, SpanSender

        self._settings = settings
        self._figures = EngineFigures(run, source, settings, status, model)
        self._waiting: deque[tuple[float, Finished]] = deque(maxlen=WAITING_REQUESTS)
        self._started_s = time.time()
        self._before: tuple[float, Snapshot] = (self._started_s, {})
        self._sending: tuple[float, Snapshot] = self._before
        self._exporting = threading.Lock()
        self._closed = threading.Event()
        metrics, spans = metric_exporter(settings), span_exporter(settings)
        self._metrics = metrics and MetricSender(
            metrics,
            self._figures.health,
            interval_s=settings.interval_s,
            timeout_s=settings.timeout_s,
            collect=self._collect,
            taken=self._taken,
        )
        self._traces = spans and SpanSender(
            spans,
            self._figures.health,
            self._figures.spans,
            interval_s=settings.span_delay_s,
            batch=settings.span_batch,
        )
        self._scrape = self._serve()
        self._thread = threading.Thread(target=self._work, name="driftscope-export", daemon=True)
        self._thread.start()

    def on_batches(self, batches: Sequence[Batch]) -> None:
        """Count the batches; runs on the writer's thread."""
        for done in self._figures.count(batches):
            if self._traces:
                self._waiting.append((time.monotonic(), done))

    def snapshot(self) -> dict[Key, Point]:
        """Return the figures of the engine core, of its workers and of the export itself."""
        for signal, sender in ((METRICS, self._metrics), (TRACES, self._traces)):
            if sender:
                self._figures.health.set(i.BEHIND, sender.back.behind_s(), signal=signal)
        return self._figures.snapshot()

    def identity(self) -> Identity | None:
        """Return the engine's identity; None until the engine has loaded its models."""
        return self._figures.identity()

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Send all current data; give up after `timeout_s`."""
        last = threading.Thread(target=self._guarded(self._send_all), daemon=True)
        last.start()
        last.join(timeout_s)

    def close(self) -> None:
        """Send the last figures and stop; idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.flush()
        if self._scrape is not None:
            self._scrape()

    def _work(self) -> None:
        poll = self._guarded(self._poll)
        while not self._closed.wait(POLL_S):
            poll()

    def _poll(self) -> None:
        with self._exporting:
            self._send_due()

    def _send_due(self) -> None:
        if self.identity() is None:
            return
        if self._traces:
            self._make_spans(time.monotonic() - SETTLE_S)
            if self._traces.back.is_due():
                self._traces.send()
        if self._metrics and self._metrics.back.is_due():
            self._metrics.send()

    def _send_all(self) -> None:
        with self._exporting:
            if self.identity() is None:
                return
            if self._metrics:
                self._metrics.send()
            if self._traces:
                self._make_spans(time.monotonic())
                self._traces.send()

    def _make_spans(self, until_s: float) -> None:
        self._figures.note_chains()
        while self._waiting and self._waiting[0][0] <= until_s:
            self._figures.spans.add(self._waiting.popleft()[1])

    def _collect(self) -> MetricsData | None:
        from driftscope.telemetry.export.otel_data import metrics_data

        identity = self.identity()
        if identity is None:
            return None
        now_s, snapshot = time.time(), self.snapshot()
        self._sending = now_s, snapshot
        start_s, delta = self._started_s, self._settings.temporality != "cumulative"
        if delta:
            start_s, snapshot = self._before[0], difference(snapshot, self._before[1])
        return metrics_data(
            snapshot,
            resource=identity.resource(),
            constants=identity.attributes,
            start_s=start_s,
            time_s=now_s,
            delta=delta,
        )

    def _taken(self) -> None:
        self._before = self._sending

    def _serve(self) -> Callable[[], None] | None:
        if self._settings.prometheus is None:
            return None
        from driftscope.telemetry.export.scrape import serve

        host, port = self._settings.prometheus
        return serve(self, host, port + self._figures.replica)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return `action` wrapped so that an exception costs figures and nothing else."""

        def guarded() -> None:
            try:
                action()
            except Exception:  # the border: a background thread must go on
                self._figures.health.add(i.LISTENER_ERRORS, 1)

        return guarded
