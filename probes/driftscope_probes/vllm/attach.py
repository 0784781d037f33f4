"""Attaches a recorder to a drafter that a runner has just loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

from driftscope.errors import ProbeError
from driftscope.trace.format.manifest import Manifest
from driftscope.trace.write.run_directory import check_unused, create_run, rewrite_manifest
from driftscope.vocabulary import SINK_SOUGHT
from driftscope_probes.base.settings import IN_GRAPH, Settings, settings_from
from driftscope_probes.control.control import Control
from driftscope_probes.drafter.captured_layers import CapturedLayers, with_captured
from driftscope_probes.recording import telemetry_feed
from driftscope_probes.recording.process_writer import open_writer, role_of
from driftscope_probes.recording.recorder import Recorder
from driftscope_probes.recording.step_timer import StepTimer
from driftscope_probes.vllm.configuration import checks
from driftscope_probes.vllm.configuration.place import place_in, run_id_of
from driftscope_probes.vllm.loaded_drafter import VllmDrafter, open_drafter
from driftscope_probes.vllm.run_manifest import manifest_of, manifest_of_lookup, with_sinks
from driftscope_probes.vllm.scheduler.cache_faults import CacheFaultTracker
from driftscope_probes.vllm.scheduler.schedule_reader import VllmSchedules

RECORDER = "_driftscope_recorder"
"""Attribute of a proposer that holds its recorder or timer, for hooks that run in every step."""
_LOADED = "_driftscope_loaded"
"""Attribute of a proposer whose run has not begun."""
RANKS_EVERY = 64
"""Sampling interval, in draft steps, for tensor-parallel ranks, which cannot follow a budget. If a
recorded step costs half of another step's time, this stays within the default budget."""


class _Loaded(NamedTuple):
    """A drafter with its recorder, before the engine has loaded its other models."""

    drafter: VllmDrafter
    manifest: Manifest
    settings: Settings


def attach_recorder(
    proposer: Any,
    runner: str,
    *,
    layer_names: set[str],
    config: Any,
    without_graphs: bool = True,
    cache: CacheFaultTracker | None = None,
    draft_sampling: str | None = None,
) -> None:
    """Attach a recorder to the drafter `proposer.model` if the probe is on; `begin_run` follows.

    `without_graphs`: the runner can draft a chain without its CUDA graphs. `cache`: tracker of this
    runner's faults in the drafter's cache, if it has any. `draft_sampling`: see the manifest.

    Raises ProbeError or TraceError: an engine that cannot be recorded as requested stops at
    start-up.
    """
    settings = settings_from(os.environ)
    if settings is None:
        return
    try:
        drafter, place = open_drafter(proposer.model, layer_names, config), place_in(config)
        _check_can_seek(settings, config)
        _check_recording(settings, runner, without_graphs)
        ranks = int(getattr(config.parallel_config, "tensor_parallel_size", 1))
        check_unused(settings.trace, run_id_of(config))  # before anything is written or hooked
        _separate_compile_cache(config)
        writer = open_writer(settings, role_of(place))
        telemetry_feed.publish(writer, settings)
        settings, notes = _of_one_rank(settings, place.rank, ranks)
        recorder = Recorder(
            drafter, settings, writer, schedules=VllmSchedules(cache), masses_only=place.rank > 0
        )
        manifest = manifest_of(drafter, runner, settings, recorder.meter.strategy)
        manifest = replace(manifest, notes=(*manifest.notes, *notes), draft_sampling=draft_sampling)
        recorder.taps.attach(proposer, "model")
    except (AttributeError, KeyError, TypeError) as error:
        raise ProbeError(
            f"this vLLM's {runner} runner is not laid out as driftscope knows it ({error!r}); "
            "run `driftscope doctor`, or set DRIFTSCOPE_DISABLE=1"
        ) from error
    recorder.control = Control(
        settings.trace, writer, recorder.selection, recorder, governed=ranks == 1
    )
    recorder.control.watch()
    setattr(proposer, RECORDER, recorder)
    setattr(proposer, _LOADED, _Loaded(drafter, manifest, settings))


def begin_run(proposer: Any, captured: CapturedLayers) -> None:
    """Begin the run of a proposer that has a recorder, after the engine has loaded all its models.

    `captured`: the layers that the target captures. Raises TraceError.
    """
    loaded: _Loaded | None = getattr(proposer, _LOADED, None)
    if loaded is None:
        return
    delattr(proposer, _LOADED)
    drafter, settings = loaded.drafter, loaded.settings
    hf_config = drafter.config.speculative_config.draft_model_config.hf_config
    manifest = with_captured(loaded.manifest, captured, drafter.aux_states, hf_config)
    create_run(settings.trace, manifest, join=True)
    recorder = recorder_of(proposer)
    if isinstance(recorder, Recorder) and recorder.search is not None:
        recorder.search.tell = lambda found: rewrite_manifest(
            settings.trace, with_sinks(manifest, found)
        )


def attach_timer(
    proposer: Any, runner: str, *, config: Any, draft_sampling: str | None = None
) -> None:
    """Start timing a proposer for which only acceptance and timing are recorded.

    Raises ProbeError or TraceError.
    """
    settings = settings_from(os.environ)
    if settings is None:
        return
    checks.check_speculation(config)
    check_unused(settings.trace, run_id_of(config))
    writer = open_writer(settings, role_of(place_in(config)))
    telemetry_feed.publish(writer, settings)
    timer = StepTimer(settings, writer, VllmSchedules())
    manifest = manifest_of_lookup(runner, settings, config)
    create_run(settings.trace, replace(manifest, draft_sampling=draft_sampling), join=True)
    setattr(proposer, RECORDER, timer)


def check_attached(proposer: Any, runner: str, config: Any) -> None:
    """Raise ProbeError if the probe is on and a loaded proposer is of no known kind."""
    if settings_from(os.environ) is None or recorder_of(proposer) is not None:
        return
    checks.check_speculation(config)
    raise ProbeError(
        f"this vLLM drafts with {type(proposer).__name__}, which driftscope does not know on the "
        f"{runner} runner; see `driftscope doctor`, or set DRIFTSCOPE_DISABLE=1"
    )


def recorder_of(proposer: Any) -> Recorder | StepTimer | None:
    """Return the recorder or timer attached to a proposer, if any."""
    return getattr(proposer, RECORDER, None)


def recorder_of_runner(runner: Any) -> Recorder | StepTimer | None:
    """Return the recorder of a runner's proposer, which V1 and V2 keep under different names."""
    proposers = (getattr(runner, name, None) for name in ("drafter", "speculator"))
    found = (recorder_of(proposer) for proposer in proposers)
    return next((recorder for recorder in found if recorder is not None), None)


def _of_one_rank(settings: Settings, rank: int, ranks: int) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings of one tensor-parallel rank, and notes about them for a reader.

    All ranks must record the same steps. A budget's rate would depend on each rank's own
    measurements, so the rate is fixed instead. Rank 0 writes what is identical on all ranks.
    """
    if rank > 0:
        settings = replace(settings, token_ids=False)
    if ranks == 1 or settings.every is not None:
        return settings, ()
    note = (
        f"one draft step in {RANKS_EVERY} was recorded whatever that cost: tensor-parallel ranks "
        "follow no budget; DRIFTSCOPE_EVERY sets another rate"
    )
    return replace(settings, every=RANKS_EVERY), (note,)


def _check_can_seek(settings: Settings, config: Any) -> None:
    """Refuse a sink search in several processes: each sees its own heads or requests and could find
    another sink set."""
    sizes = (
        getattr(config.parallel_config, name, 1)
        for name in ("tensor_parallel_size", "data_parallel_size")
    )
    if settings.sink_source == SINK_SOUGHT and max(sizes) > 1:
        raise ProbeError(
            "DRIFTSCOPE_SINK_TOKENS=auto looks for one sink set in one worker: record this engine "
            "once with tensor and data parallel size 1, and give the slots that it finds"
        )


def _check_recording(settings: Settings, runner: str, without_graphs: bool) -> None:
    if settings.recording != IN_GRAPH and not without_graphs:
        raise ProbeError(
            f"DRIFTSCOPE_RECORDING={settings.recording} needs chains drafted without CUDA graphs, "
            f"and this vLLM's {runner} runner does not offer them where driftscope knows it; leave "
            f"it at {IN_GRAPH}, and see `driftscope doctor`"
        )


def _separate_compile_cache(config: Any) -> None:
    """Keep compiled graphs that contain the tap separate from graphs without it.

    vLLM's cache key covers its configuration but not hooks, so the configuration must name the tap.
    """
    if isinstance(config.additional_config, dict):
        config.additional_config["driftscope"] = "residual of one element"
