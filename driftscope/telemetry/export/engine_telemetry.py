"""Telemetry of a process that records: what a worker publishes, and what the engine core speaks.

A listener hangs on a `TraceWriter` and counts on its thread. Sending and answering scrapes happen
on threads of their own. Nothing here raises into a serving thread, and nothing there waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_feed import Feed
from driftscope.telemetry.collect.engine_identity import Identity, ManifestFile
from driftscope.telemetry.collect.process_figures import Shared, publish, workers_of
from driftscope.telemetry.collect.request_log import Finished, RequestLog
from driftscope.telemetry.collect.status_figures import tell
from driftscope.telemetry.collect.tally import Key, Point, Snapshot, Tally, difference, merged
from driftscope.telemetry.export.settings import METRICS, TRACES, Settings
from driftscope.trace.format.status import Status
from driftscope.trace.read.ranks import place_of
from driftscope.trace.write.record_files import Batch

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

PUBLISH_S = 1.0
"""How often a worker rewrites its figures."""
POLL_S = 0.5
"""How often the engine core looks whether something is to be done."""
SETTLE_S = 3.0
"""How long a finished request waits for what its workers have to say of its chains: a flush, a
publication and a look, with room to spare."""
WAITING_REQUESTS = 4096
CLOSE_S = 2.0
"""Longest time that closing waits for a collector."""
_LAST = "request"
"""A request's last round counts before its end."""


def together(batches: Sequence[Batch]) -> Iterator[Batch]:
    """One batch per record, in order: counting costs by the batch, hardly by the row."""
    by_record: dict[str, list[pa.RecordBatch]] = {}
    for record, batch in in_order(batches):
        by_record.setdefault(record, []).append(batch)
    for record, several in by_record.items():
        for batch in pa.Table.from_batches(several).combine_chunks().to_batches():
            yield record, batch


def in_order(batches: Sequence[Batch]) -> list[Batch]:
    """Batches as they are to be counted."""
    return sorted(batches, key=lambda batch: batch[0] == _LAST)


class WorkerTelemetry:
    """A worker's figures, published for the engine core of its replica."""

    def __init__(self, run: Path, source: str, status: Callable[[], Status]) -> None:
        self._run, self._source, self._status = run, source, status
        self._tally = Tally()
        self._feed = Feed(
            tally=self._tally,
            sink_slots=ManifestFile(run).sink_slots,
            first_rank=place_of(source).rank == 0,
        )
        self._waiting: list[Batch] = []
        self._published_s, self._stale = -PUBLISH_S, True

    def on_batches(self, batches: Sequence[Batch]) -> None:
        """On the writer's thread: count and publish when it is time."""
        self._waiting.extend(batches)
        self._stale = self._stale or bool(batches)
        now = time.monotonic()
        if self._stale and now - self._published_s >= PUBLISH_S:
            self._published_s, self._stale = now, False
            self.publish()

    def publish(self) -> None:
        """Count what waits, and rewrite the file that the engine core reads."""
        waiting, self._waiting = self._waiting, []
        for record, batch in together(waiting):
            self._feed.take(record, batch)
        tell(self._tally, self._status())
        points = self._tally.snapshot()
        chains = tuple(self._feed.notable)
        publish(self._run, Shared(source=self._source, points=points, chains=chains))


class EngineTelemetry:
    """The engine core: counts its own, adds its workers', and speaks for all of them.

    ==================  ==========================================================
    `on_batches(batches)`     on the writer's thread
    `snapshot()`        every figure of the engine as it stands
    `identity()`        who speaks; None until the engine has loaded its models
    `flush()`           send what there is, for at most CLOSE_S
    `close()`           the same once more, and stop
    ==================  ==========================================================

    Raises TelemetryError from the constructor when something cannot be sent as asked.
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
        """`model`: the name under which the engine serves it."""
        from driftscope.telemetry.export.exporters import metric_exporter, span_exporter
        from driftscope.telemetry.export.sender import MetricSender, SpanSender
        from driftscope.telemetry.export.spans import Spans

        self._run, self._status, self._settings = run, status, settings
        self._model, self._replica = model, place_of(source).replica or 0
        self._manifest = ManifestFile(run)
        self._tally, self._health = Tally(), Tally()
        self._feed = Feed(tally=self._tally, sink_slots=self._manifest.sink_slots)
        self._log = RequestLog(self._tally, settings.labels)
        self._waiting: deque[tuple[float, Finished]] = deque(maxlen=WAITING_REQUESTS)
        self._spans = Spans(queue=settings.span_queue, labels_of=self._log.label_of)
        self._started_s = time.time()
        self._before: tuple[float, Snapshot] = (self._started_s, {})
        self._sending: tuple[float, Snapshot] = self._before
        self._identity: Identity | None = None
        self._meeting, self._speaking = threading.Lock(), threading.Lock()
        self._closed = threading.Event()
        metrics, spans = metric_exporter(settings), span_exporter(settings)
        self._metrics = metrics and MetricSender(
            metrics,
            self._health,
            interval_s=settings.interval_s,
            timeout_s=settings.timeout_s,
            collect=self._collect,
            taken=self._taken,
        )
        self._traces = spans and SpanSender(
            spans,
            self._health,
            self._spans,
            interval_s=settings.span_delay_s,
            batch=settings.span_batch,
        )
        self._health.set(i.SPANS_LOST, 0)
        self._health.set(i.LISTENER_ERRORS, 0)
        self._scrape = self._serve()
        self._thread = threading.Thread(target=self._work, name="driftscope-export", daemon=True)
        self._thread.start()

    def on_batches(self, batches: Sequence[Batch]) -> None:
        """Count; on the writer's thread."""
        for record, batch in in_order(batches):
            self._feed.take(record, batch)
            if record == "verify":
                self._log.verified(batch)
            elif record == "request":
                done = list(self._log.finished(batch))
                if self._traces:
                    self._waiting.extend((time.monotonic(), each) for each in done)

    def snapshot(self) -> dict[Key, Point]:
        """The engine core's figures, its workers' and those of the export itself."""
        tell(self._tally, self._status())
        self._tell_health()
        shared = [worker.points for worker in workers_of(self._run, self._replica)]
        whole = merged([self._tally.snapshot(), *shared, self._health.snapshot()])
        for key, exemplar in list(self._spans.exemplars.items()):
            if key in whole and self._settings.exemplars:
                whole[key] = replace(whole[key], exemplar=exemplar)
        return whole

    def identity(self) -> Identity | None:
        """Who speaks."""
        with self._meeting:
            if self._identity is None and (manifest := self._manifest.read()) is not None:
                model = self._model or manifest.target.name
                found = Identity(manifest=manifest, model=model, replica=self._replica)
                self._health.set(i.CONFIGURED_K, manifest.k)
                self._spans.start(found.resource(), found.attributes)
                self._identity = found
            return self._identity

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Send all that there is now; gives up after `timeout_s`."""
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
        with self._speaking:
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
        with self._speaking:
            if self.identity() is None:
                return
            if self._metrics:
                self._metrics.send()
            if self._traces:
                self._make_spans(time.monotonic())
                self._traces.send()

    def _make_spans(self, until_s: float) -> None:
        for worker in workers_of(self._run, self._replica):
            self._spans.note(worker.chains)
        while self._waiting and self._waiting[0][0] <= until_s:
            self._spans.add(self._waiting.popleft()[1])

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

    def _tell_health(self) -> None:
        self._health.set(i.SPANS_LOST, self._spans.dropped)
        for signal, sender in ((METRICS, self._metrics), (TRACES, self._traces)):
            if sender:
                self._health.set(i.BEHIND, sender.back.behind_s(), signal=signal)

    def _serve(self) -> Callable[[], None] | None:
        if self._settings.prometheus is None:
            return None
        from driftscope.telemetry.export.scrape import serve

        host, port = self._settings.prometheus
        return serve(self, host, port + self._replica)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """`action`, whose errors cost figures and nothing else."""

        def guarded() -> None:
            try:
                action()
            except Exception:  # the border: a thread that serves nobody must go on
                self._health.add(i.LISTENER_ERRORS, 1)

        return guarded
