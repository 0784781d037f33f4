"""The figures of one engine: those of its core, of its workers and of the export itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_counter import BatchCounter
from driftscope.telemetry.collect.engine_identity import Identity, ManifestFile
from driftscope.telemetry.collect.process_figures import workers_of
from driftscope.telemetry.collect.request_log import Finished, RequestLog
from driftscope.telemetry.collect.status_figures import record_status
from driftscope.telemetry.collect.tally import Key, Point, Tally, merged
from driftscope.telemetry.export.batch_order import in_order
from driftscope.telemetry.export.settings import Settings
from driftscope.trace.format.status import Status
from driftscope.trace.read.ranks import place_of
from driftscope.trace.write.record_files import Batch


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
        from driftscope.telemetry.export.spans import Spans

        self._run, self._status, self._exemplars = run, status, settings.exemplars
        self._model, self.replica = model, place_of(source).replica or 0
        self._manifest = ManifestFile(run)
        self._tally, self.health = Tally(), Tally()
        self._counter = BatchCounter(tally=self._tally)
        self._log = RequestLog(self._tally, settings.labels, regions=settings.regions)
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
                self.spans.start(identity.resource(), identity.attributes)
                self._identity = identity
            return self._identity

    def note_chains(self) -> None:
        """Give the spans the chains that the workers recorded since the last call."""
        for worker in workers_of(self._run, self.replica):
            self.spans.note(worker.chains)
