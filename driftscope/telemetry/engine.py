"""Telemetry of a live engine: its worker's figures, and the engine core's export of all of them.

A listener subscribes to a `TraceWriter` and counts on its thread. Exports and scrapes run on
threads of their own. Nothing here raises into a serving thread, and no serving thread waits for an
export or a scrape.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from driftscope.errors import DriftscopeError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import (
    BatchCounter,
    Finished,
    RequestLog,
    Shared,
    publish,
    record_status,
    workers_of,
)
from driftscope.telemetry.down import service_resource
from driftscope.telemetry.instruments import (
    DRAFTER,
    MODEL,
    PROVIDER,
    Key,
    Point,
    Snapshot,
    Tally,
    difference,
    merged,
)
from driftscope.telemetry.settings import METRICS, TRACES, Settings
from driftscope.trace.manifest import MANIFEST, Manifest, Model, read_manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.status import Status
from driftscope.trace.writer_files import Batch
from driftscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

_LAST = "request"
"""Record that is counted last: a request's final round is counted before its end."""
PUBLISH_S = 1.0
"""Interval at which a worker rewrites its figures, in seconds."""
POLL_S = 0.5
"""Interval at which the engine core checks for due exports, in seconds."""
SETTLE_S = 3.0
"""Time for which a finished request waits for the chains that its workers recorded, in seconds: one
flush, one publication and one poll, with room to spare."""
WAITING_REQUESTS = 4096
CLOSE_S = 2.0
"""Longest time that closing waits for a collector, in seconds."""
SERVICE = "driftscope"
DIGEST_CHARS = 8
"""Hexadecimal digits of a model's digest in a label."""
_CACHED = "models--"
"""Prefix of a repository's folder in the Hugging Face cache, whose snapshots are named by hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one engine."""

    manifest: Manifest
    model: str
    replica: int = 0

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that every series of the engine has; no drafter is ""."""
        drafter = self.manifest.drafter
        return {
            MODEL: model_label(replace(self.manifest.target, name=self.model)),
            DRAFTER: model_label(drafter) if drafter else "",
            PROVIDER: self.manifest.engine,
        }

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take
        precedence over the values set here."""
        return service_resource(
            {
                "service.name": SERVICE,
                "service.instance.id": self.instance,
                "service.version": __version__,
                "driftscope.run.id": self.manifest.run_id,
                "driftscope.replica": self.replica,
                "driftscope.engine.version": self.manifest.engine_version,
            }
        )

    @property
    def instance(self) -> str:
        """Instance id, constant while the engine runs and unique among engines."""
        return f"{socket.gethostname()}/{self.manifest.run_id}/{self.replica}"


def model_label(model: Model) -> str:
    """Return a model's name as a label: a served or repository name as it is, a file path as its
    last part and the first DIGEST_CHARS digits of the digest of its weights, or of its config.

    A path differs between replicas that mount the same files elsewhere, and tells where they are.
    """
    if not model.name.startswith(("/", "./", "../", "~")):
        return model.name
    path = PurePosixPath(model.name)
    for part in path.parts:
        if part.startswith(_CACHED):
            return part.removeprefix(_CACHED).replace("--", "/")
    digest = (model.weights_digest or model.config_digest)[:DIGEST_CHARS]
    return f"{path.name}@{digest}" if digest else path.name


class ManifestFile:
    """A run's manifest, read again when it changes. It may appear later or be rewritten."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen: tuple[int, int] | None = None
        self._manifest: Manifest | None = None

    def read(self) -> Manifest | None:
        """Return the current manifest; None before the first one is written."""
        try:
            file = (self._run / MANIFEST).stat()
            seen = (file.st_mtime_ns, file.st_ino)
            if seen != self._seen:
                self._manifest, self._seen = read_manifest(self._run), seen
        except (OSError, DriftscopeError):  # not written yet, or being rewritten
            pass
        return self._manifest


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


class EngineFigures:
    """Counts an engine core's records, and adds its workers' figures.

    =====================  ==========================================================
    `count(batches)`       count batches, and yield the requests that ended
    `snapshot()`           every figure of the engine with its current value
    `identity()`           identity of the engine; None until its models are loaded
    `note_chains()`        give the spans the chains that the workers recorded
    =====================  ==========================================================
    """

    def __init__(
        self,
        run: Path,
        source: str,
        settings: Settings,
        status: Callable[[], Status],
        model: str | None,
    ) -> None:
        from driftscope.telemetry.export import Spans

        self._run, self._status, self._exemplars = run, status, settings.exemplars
        self._model, self.replica = model, place_of(source).replica or 0
        self._manifest = ManifestFile(run)
        self._tally, self.health = Tally(), Tally()
        self._counter = BatchCounter(tally=self._tally)
        self._log = RequestLog(self._tally, settings.labels)
        self.spans = Spans(queue=settings.span_queue, labels_of=self._log.label_of)
        self._identity: Identity | None = None
        self._identifying = threading.Lock()
        self.health.set(i.SPANS_LOST, 0)
        self.health.set(i.LISTENER_ERRORS, 0)

    def count(self, batches: Sequence[Batch]) -> Iterator[Finished]:
        """Count the batches, and yield the requests that ended."""
        for record, batch in in_order(batches):
            self._counter.take(record, batch)
            if record == "verify":
                self._log.verified(batch)
            elif record == "request":
                yield from self._log.finished(batch)

    def snapshot(self) -> dict[Key, Point]:
        """Return the figures of the engine core, of its workers and of the export itself."""
        record_status(self._tally, self._status())
        self.health.set(i.SPANS_LOST, self.spans.dropped)
        shared = [worker.points for worker in workers_of(self._run, self.replica)]
        whole = merged([self._tally.snapshot(), *shared, self.health.snapshot()])
        for key, exemplar in list(self.spans.exemplars.items()):
            if key in whole and self._exemplars:
                whole[key] = replace(whole[key], exemplar=exemplar)
        return whole

    def identity(self) -> Identity | None:
        """Return the engine's identity; None until the engine has loaded its models."""
        with self._identifying:
            if self._identity is None and (manifest := self._manifest.read()) is not None:
                model = self._model or manifest.target.name
                identity = Identity(manifest=manifest, model=model, replica=self.replica)
                self.health.set(i.CONFIGURED_K, manifest.k)
                self.health.set(i.SIMULATED, int(manifest.is_simulated))
                self.spans.start(identity.resource(), identity.attributes)
                self._identity = identity
            return self._identity

    def note_chains(self) -> None:
        """Give the spans the chains that the workers recorded since the last call."""
        for worker in workers_of(self._run, self.replica):
            self.spans.note(worker.chains)


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
        from driftscope.telemetry.export import (
            MetricSender,
            SpanSender,
            metric_exporter,
            span_exporter,
        )

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
                self._figures.health.set(i.BEHIND, sender.schedule.behind_s(), signal=signal)
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
            if self._traces.schedule.is_due():
                self._traces.send()
        if self._metrics and self._metrics.schedule.is_due():
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
        from driftscope.telemetry.export import metrics_data

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
        from driftscope.telemetry.prometheus import serve

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


def together(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield one batch per record, in order: the cost of counting is per batch, hardly per row."""
    by_record: dict[str, list[pa.RecordBatch]] = {}
    for record, batch in in_order(batches):
        by_record.setdefault(record, []).append(batch)
    for record, several in by_record.items():
        for batch in pa.Table.from_batches(several).combine_chunks().to_batches():
            yield record, batch


def in_order(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches in the order in which they are counted."""
    return sorted(batches, key=lambda batch: batch[0] == _LAST)
