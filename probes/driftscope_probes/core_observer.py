"""The part of an engine core's observer that does not depend on the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftscope.trace.status import TARGET
from driftscope.trace.writer import TraceWriter
from driftscope_probes import process_writer
from driftscope_probes.control import Control
from driftscope_probes.engine import shortened
from driftscope_probes.guard import CORE, Guard
from driftscope_probes.process_writer import open_writer
from driftscope_probes.request_rows import PromptDigests, RequestRegions, RequestTracker
from driftscope_probes.sampler import RequestSelection
from driftscope_probes.settings import Settings, prompt_key
from driftscope_probes.start_guard import EXPORT, StartGuard

if TYPE_CHECKING:
    from driftscope.telemetry.engine import EngineTelemetry


class CoreObserver:
    """Passes what a scheduler shows on the serving thread to the writer's."""

    def __init__(
        self,
        settings: Settings,
        role: str,
        model: str | None,
        regions: RequestRegions,
        tracker: Callable[..., RequestTracker],
    ) -> None:
        """`role` is unique per core; `model` is the name that is served; `tracker` takes the
        arguments of RequestTracker."""
        self._writer: TraceWriter = open_writer(settings, role)
        self._telemetry: EngineTelemetry | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._writer.close)
            guard = StartGuard(EXPORT)
            with guard:
                self._telemetry = process_writer.export(self._writer, settings, model)
            if guard.fault is not None:
                self._writer.set_gauges(reason=f"{EXPORT}: {guard.fault.reason}")
            self._guard = Guard(
                self._writer, test_raise=settings.test_raise, adds_to=(self._writer, CORE)
            )
            self._selection = RequestSelection(settings.labels)
            Control(settings.trace, self._writer, self._selection).watch()
            digests = PromptDigests(prompt_key(settings)) if settings.prompt_digests else None
            self._regions = regions if settings.regions else None
            self._rows = tracker(self._writer.count_error, digests, self._regions).rows
            undo.pop_all()

    def weights_named(self, *args: Any, **kwargs: Any) -> None:
        """Observe that the engine got a name for its new weights, its method's only argument."""
        for version in (*args, *kwargs.values())[:1]:
            self._guard.run("weights", self._name_weights, version)

    def _name_weights(self, version: Any) -> None:
        self._writer.note_weights(TARGET, shortened(version))
