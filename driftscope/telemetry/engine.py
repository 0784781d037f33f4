"""Telemetry of a live engine: its worker's figures, and the engine core's export of all of them.

A listener subscribes to a `TraceWriter` and counts on its thread. Exports and scrapes run on
threads of their own. Nothing here raises into a serving thread, and no serving thread waits for an
export or a scrape.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from driftscope.errors import DriftscopeError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.count import (
    BatchCounter,
    Finished,
    RequestLog,
    publish,
    record_status,
    workers_of,
)
from driftscope.telemetry.instruments import (
    Identity,
    Key,
    Point,
    Snapshot,
    Tally,
    difference,
    merged,
)
from driftscope.telemetry.settings import METRICS, TRACES, ExportSettings
from driftscope.trace.manifest import MANIFEST, Manifest, Model, read_manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.status import Status
from driftscope.trace.writer_files import Batch

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

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
DIGEST_CHARS = 8
"""Hexadecimal digits of a model's digest in a label."""
_CACHED = "models--"
"""Prefix of a repository's folder in the Hugging Face cache, whose snapshots are named by hash."""


def identity_of(manifest: Manifest, model: str | None = None, replica: int = 0) -> Identity:
    """Return the identity of an engine that serves `model`, by default the target's name."""
    drafter, target = manifest.drafter, manifest.target
    return Identity(
        model=model_label(replace(target, name=model or target.name)),
        drafter=model_label(drafter) if drafter else "",
        engine=manifest.engine,
        engine_version=manifest.engine_version,
        replica=replica,
        run_id=manifest.run_id,
    )


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
            version = (file.st_mtime_ns, file.st_ino)
            if version != self._seen:
                self._manifest, self._seen = read_manifest(self._run), version
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
        publish(self._run, self._source, self._tally.snapshot(), self._counter.notable)


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
        settings: ExportSettings,
        status: Callable[[], Status],
        *,
        model: str | None = None,
    ) -> None:
        """`model`: the name under which the engine serves the model."""
        from driftscope.telemetry.export import SignalExport, Spans, metric_exporter, span_exporter

        self._run, self._status, self._settings = run, status, settings
        self._model, self._replica = model, place_of(source).replica or 0
        self._manifest = ManifestFile(run)
        self._identity: Identity | None = None
        self._identifying, self._exporting = threading.Lock(), threading.Lock()
        self._tally, self._health = Tally(), Tally()
        self._counter = BatchCounter(tally=self._tally)
        self._log = RequestLog(self._tally, settings.labels)
        self._spans = Spans(queue=settings.span_queue, labels_of=self._log.label_of)
        self._waiting: deque[tuple[float, Finished]] = deque(maxlen=WAITING_REQUESTS)
        self._started_s = time.time()
        self._before: tuple[float, Snapshot] = (self._started_s, {})
        self._health.set(i.SPANS_LOST, 0)
        self._health.set(i.LISTENER_ERRORS, 0)
        self._metric_exporter = metric_exporter(settings)
        self._span_exporter = span_exporter(settings)
        self._metrics = SignalExport(METRICS, self._health, settings.interval_s)
        self._traces = SignalExport(TRACES, self._health, settings.span_delay_s)
        self._closed = threading.Event()
        self._scrape = None
        if settings.prometheus is not None:
            from driftscope.telemetry.prometheus import serve

            host, port = settings.prometheus
            self._scrape = serve(self, host, port + self._replica)
        threading.Thread(target=self._work, name="driftscope-export", daemon=True).start()

    def on_batches(self, batches: Sequence[Batch]) -> None:
        """Count the batches; runs on the writer's thread."""
        for record, batch in in_order(batches):
            self._counter.take(record, batch)
            if record == "verify":
                self._log.verified(batch)
            for done in self._log.finished(batch) if record == "request" else ():
                if self._span_exporter:
                    self._waiting.append((time.monotonic(), done))

    def snapshot(self) -> dict[Key, Point]:
        """Return the figures of the engine core, of its workers and of the export itself."""
        record_status(self._tally, self._status())
        self._health.set(i.SPANS_LOST, self._spans.dropped)
        if self._metric_exporter:
            self._health.set(i.BEHIND, self._metrics.behind_s(), signal=METRICS)
        if self._span_exporter:
            self._health.set(i.BEHIND, self._traces.behind_s(), signal=TRACES)
        shared = [points for points, _ in workers_of(self._run, self._replica)]
        whole = merged([self._tally.snapshot(), *shared, self._health.snapshot()])
        for key, exemplar in list(self._spans.exemplars.items()):
            if key in whole and self._settings.exemplars:
                whole[key] = replace(whole[key], exemplar=exemplar)
        return whole

    def identity(self) -> Identity | None:
        """Return the engine's identity; None until the engine has loaded its models."""
        with self._identifying:
            if self._identity is None and (manifest := self._manifest.read()) is not None:
                identity = identity_of(manifest, self._model, self._replica)
                self._health.set(i.CONFIGURED_K, manifest.k)
                self._health.set(i.SIMULATED, int(manifest.is_simulated))
                self._spans.start(identity.resource(), identity.attributes)
                self._identity = identity
            return self._identity

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Send all current data; give up after `timeout_s`."""
        last = threading.Thread(
            target=self._guarded(partial(self._send_due, everything=True)), daemon=True
        )
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
        poll = self._guarded(self._send_due)
        while not self._closed.wait(POLL_S):
            poll()

    def _send_due(self, *, everything: bool = False) -> None:
        """Send what is due, or everything: then requests wait for no chains of their workers."""
        from driftscope.telemetry.export import export_spans

        with self._exporting:
            if (identity := self.identity()) is None:
                return
            if self._span_exporter:
                for _, chains in workers_of(self._run, self._replica):
                    self._spans.note(chains)
                until_s = time.monotonic() - (0.0 if everything else SETTLE_S)
                while self._waiting and self._waiting[0][0] <= until_s:
                    self._spans.add(self._waiting.popleft()[1])
            if self._metric_exporter and (everything or self._metrics.is_due()):
                self._send_metrics(self._metric_exporter, identity)
            if self._span_exporter and (everything or self._traces.is_due()):
                batch = self._settings.span_batch
                export_spans(self._span_exporter, self._spans, batch, self._traces)

    def _send_metrics(self, exporter: MetricExporter, identity: Identity) -> None:
        """Send the figures; delta figures start where the last accepted batch ended."""
        from driftscope.telemetry.export import export_metrics, metrics_data

        now_s, snapshot = time.time(), self.snapshot()
        delta = self._settings.temporality != "cumulative"
        begin_s, before = self._before if delta else (self._started_s, {})
        data = metrics_data(
            difference(snapshot, before) if delta else snapshot,
            resource=identity.resource(),
            constants=identity.attributes,
            start_s=begin_s,
            time_s=now_s,
            delta=delta,
        )
        accepted = export_metrics(exporter, data, self._settings)
        self._metrics.note(accepted)
        if accepted:
            self._before = now_s, snapshot

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return `action` wrapped so that an exception costs figures and nothing else."""

        def guarded() -> None:
            try:
                action()
            except Exception:  # the border: a background thread must go on
                self._health.add(i.LISTENER_ERRORS, 1)

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
