"""Attaches a recorder to a drafter that SGLang has just loaded, and begins the run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.trace.write.run_directory import check_unused, create_run, rewrite_manifest
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes import process_writer
from driftscope_probes.control import Control
from driftscope_probes.engine import EngineSeam
from driftscope_probes.process_writer import open_writer
from driftscope_probes.recorder import Recorder, assemble_recorder, with_sinks
from driftscope_probes.settings import EAGER, Settings, settings_from
from driftscope_probes.sglang.chain.ahead_sampler import AheadSampler
from driftscope_probes.sglang.chain.drafter_taps import DrafterTaps
from driftscope_probes.sglang.chain.first_depths import FirstDepths
from driftscope_probes.sglang.loaded_drafter import SglangDrafter, open_drafter
from driftscope_probes.sglang.run_manifest import manifest_of, manifest_of_timed, run_id
from driftscope_probes.sglang.scheduler.scheduler_observer import observe_scheduler
from driftscope_probes.sglang.scheduler.schedules import SglangSchedules
from driftscope_probes.sglang.worker_probe import ChainParts, RecordedWorker, TimedWorker
from driftscope_probes.start_guard import (
    EXPORT,
    INTERNALS,
    StartGuard,
    handed_down,
    leave_note,
    warn,
)
from driftscope_probes.step_record import StepTimer

PROBE = "_driftscope_probe"
"""Attribute of an EagleDraftWorker that holds its TimedWorker or RecordedWorker."""
WORKER = "worker0"
"""Role of the process in the run: the only rank."""
_PARALLELISM = ("tp_size", "pp_size", "dp_size")


def attach(worker: Any) -> None:
    """Attach a recorder to an EagleDraftWorker if the probe is on, or else time its steps.

    Raises an exception only with DRIFTSCOPE_STRICT=1.
    """
    guard = StartGuard()
    with guard:
        settings = settings_from(os.environ)
        if settings is None or handed_down() is not None or hasattr(worker, PROBE):
            return
        _attach(worker, replace(settings, recording=EAGER))
    if guard.fault is not None:
        if hasattr(worker, PROBE):
            delattr(worker, PROBE)
        if (settings := _quietly_settings()) is not None:
            leave_note(settings.trace, guard.fault, WORKER)


def _quietly_settings() -> Settings | None:
    with StartGuard(quiet=True):
        return settings_from(os.environ)
    return None


def _attach(worker: Any, settings: Settings) -> None:
    check_parallelism(worker.server_args)
    check_unused(settings.trace, run_id())  # before anything is written or hooked
    drafter, lost = _drafter_of(worker)
    writer = open_writer(settings, WORKER)
    with contextlib.ExitStack() as undo:
        undo.callback(writer.close)
        with StartGuard(EXPORT):
            process_writer.publish(writer, settings)
        probe: EngineSeam | None = None
        if drafter is not None:
            inside = StartGuard(INTERNALS, quiet=True)
            with inside:
                probe = _recorded(worker, drafter, settings, writer)
            if inside.fault is not None:
                lost = f"{INTERNALS}: {inside.fault.reason}"
        if probe is None:
            probe = _timed(worker, settings, writer, lost)
        observe_scheduler(worker, settings)
        undo.pop_all()
    setattr(worker, PROBE, probe)


def check_parallelism(arguments: Any) -> None:
    """Raise ProbeError for an engine of several ranks, of which this driftscope was not tested."""
    for name in _PARALLELISM:
        if int(getattr(arguments, name, 1) or 1) > 1:
            raise ProbeError(f"{name} > 1 is not supported by this driftscope in SGLang")


def _drafter_of(worker: Any) -> tuple[SglangDrafter | None, str]:
    """Return the drafter, or else why its inside cannot be recorded."""
    try:
        return open_drafter(worker), ""
    except UnknownDrafterError as error:
        return None, str(error)
    except (AttributeError, KeyError, TypeError, ImportError) as error:
        return None, f"{INTERNALS}: this SGLang is not laid out as driftscope knows it ({error!r})"


def _timed(worker: Any, settings: Settings, writer: TraceWriter, note: str) -> TimedWorker:
    """Begin a run of acceptance and timing."""
    create_run(settings.trace, manifest_of_timed(worker, settings, note), join=True)
    writer.set_gauges(reason=note)
    warn(f"{note}; acceptance and timing are recorded")
    return TimedWorker(StepTimer(settings, writer, SglangSchedules()))


def _recorded(
    worker: Any, drafter: SglangDrafter, settings: Settings, writer: TraceWriter
) -> RecordedWorker:
    """Begin a run with the drafter's inside."""
    made: list[DrafterTaps] = []
    sampler: list[AheadSampler] = []

    def make_taps(*parts: Any, **options: Any) -> DrafterTaps:
        made.append(DrafterTaps(*parts, **options))
        return made[0]

    def make_sampler(**options: Any) -> AheadSampler:
        sampler.append(AheadSampler(**options))
        return sampler[0]

    recorder = assemble_recorder(
        drafter,
        settings,
        writer,
        schedules=SglangSchedules(),
        make_taps=make_taps,
        make_sampler=make_sampler,
    )
    recorder.taps.attach(worker, "draft_runner")
    manifest = replace(
        manifest_of(worker, drafter, settings, recorder.meter), device_bytes=recorder.device_bytes
    )
    create_run(settings.trace, manifest, join=True)
    if recorder.search is not None:
        recorder.search.report = lambda sinks: rewrite_manifest(
            settings.trace, with_sinks(manifest, sinks)
        )
    _control(recorder, settings, writer)
    return RecordedWorker(
        ChainParts(
            recorder=recorder,
            taps=made[0],
            sampler=sampler[0],
            first=FirstDepths(2 * drafter.max_requests),
            layers=tuple(drafter.layers),
            writer=writer,
        )
    )


def _control(recorder: Recorder, settings: Settings, writer: TraceWriter) -> None:
    control = Control(settings.trace, writer, recorder.selection, recorder)
    control.watch()
    recorder.control = control
