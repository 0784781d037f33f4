"""Attaches a recorder to a drafter that a runner has just loaded, and builds the run's manifest."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.parser_marks import unknown_parsers
from driftscope.trace.manifest import (
    AGREES,
    BLOCK,
    EXACT,
    SIMULATED,
    Manifest,
    Model,
    weights_digest,
)
from driftscope.trace.status import DRAFTER, TARGET, StartFault
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import (
    check_unused,
    create_run,
    has_begun,
    rewrite_manifest,
)
from driftscope.version import __version__
from driftscope.vocabulary import SINK_SOUGHT, Strategy
from driftscope_probes import process_writer
from driftscope_probes.control import Control
from driftscope_probes.drafter import CapturedLayers, Drafter, with_captured
from driftscope_probes.meter import Meter
from driftscope_probes.process_writer import note_loads, open_writer, role_of
from driftscope_probes.recorder import (
    CHAINS,
    IDENTIFIERS_OFF,
    SINKS_SOUGHT,
    Recorder,
    assemble_recorder,
    check_can_seek,
    masses_in_manifest,
    model_in_manifest,
    settings_in_manifest,
    settings_of_rank,
    with_sinks,
)
from driftscope_probes.settings import EAGER, IN_GRAPH, Settings, settings_from
from driftscope_probes.start_guard import (
    EXPORT,
    INTERNALS,
    StartGuard,
    handed_down,
    leave_note,
    say,
    warn,
)
from driftscope_probes.step_record import StepTimer
from driftscope_probes.vllm import support
from driftscope_probes.vllm.drafter import is_compiled, open_drafter
from driftscope_probes.vllm.schedule import CacheFaultTracker, VllmSchedules, parsers_of
from driftscope_probes.vllm.support import place_in, run_id_of
from driftscope_probes.witness import StartWitness, WitnessResult

WRONG_TOKENS = (
    "this vLLM returns wrong tokens at temperature > 0: its CPU build lacks Triton for the CPU; "
    "send requests at temperature 0"
)
"""Line in the log of an engine that loses temperatures."""
_TEMPERATURES = (0.375, 1.625)
"""Numbers that memory is unlikely to hold by chance."""


def loses_temperature() -> bool:
    """Return whether drafts are verified at temperatures that no request asked for.

    vLLM's own function is run on a few numbers on a CPU; on other devices, and if this vLLM's
    function is another one, the answer is no.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    temperatures, ends = torch.tensor(_TEMPERATURES), torch.tensor([2, 5], dtype=torch.int32)
    try:
        from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

        spread = expand_batch_to_tokens(temperatures, ends, 5)
    except Exception:  # the border: whatever another version of vLLM does with these arguments
        return False
    return not torch.equal(spread, temperatures.repeat_interleave(torch.tensor([2, 3])))


_NORM_FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


def manifest_of(
    config: Any,
    runner: str,
    settings: Settings,
    drafter: Drafter | None = None,
    meter: Meter | None = None,
) -> Manifest:
    """Return the manifest of a run, whose masses are measured by `meter`; without a recorded
    `drafter`, of acceptance and timing alone, or of timing if nothing drafts. `runner` is "v1" or
    "v2"."""
    import vllm

    speculation, parallel = config.speculative_config, config.parallel_config
    inside: dict[str, Any] = {"drafter_layers": 0, "attention_strategy": Strategy.NONE}
    notes = list[str]() if settings.identifiers else [IDENTIFIERS_OFF]
    role = getattr(getattr(config, "kv_transfer_config", None), "kv_role", None)
    notes += [_HALVES[role]] if role in _HALVES else []
    notes += map(str, unknown_parsers(*parsers_of(config))) if settings.regions else []
    if drafter is not None and meter is not None:
        inside = masses_in_manifest(drafter, settings, meter) | {
            "norm_flags": {flag: _flag(drafter.model, flag) for flag in _NORM_FLAGS},
            "query_kind": drafter.kind.query_kind,
        }
        notes += drafter.notes
        notes += [SINKS_SOUGHT] * bool(settings.sink_source == SINK_SOUGHT and drafter.layers)
    drafts = None
    if speculation is not None:
        if drafter is not None or _has_own_model(speculation, config.model_config):
            drafts = _model(config, speculation.draft_model_config)
        else:
            drafts = Model(name=speculation.method, architecture="", config_digest="", dtype="")
    # Only the V1 runner of a build without Triton verifies at wrong temperatures.
    if wrong := speculation is not None and runner == "v1" and loses_temperature():
        warn(WRONG_TOKENS)
    return Manifest(
        run_id=run_id_of(config),
        created_s=time.time(),
        driftscope_version=__version__,
        engine="vllm",
        engine_version=str(vllm.__version__).partition("+")[0],
        runner=runner,
        mode="compiled" if is_compiled(config) else "eager",
        recording="sampled eager" if settings.recording == EAGER else settings.recording,
        method="" if speculation is None else speculation.method,
        k=0 if speculation is None else speculation.num_speculative_tokens,
        target=_model(config, config.model_config),
        drafter=drafts,
        attention_backend="" if drafter is None else drafter.backend,
        kv_cache_dtype=str(config.cache_config.cache_dtype),
        rank=place_in(config).rank,
        tensor_parallel=getattr(parallel, "tensor_parallel_size", 1),
        data_parallel=getattr(parallel, "data_parallel_size", 1),
        pipeline_parallel=getattr(parallel, "pipeline_parallel_size", 1),
        **settings_in_manifest(settings),
        verification=None if speculation is None else verification_of(speculation),
        samples_wrongly=wrong,
        notes=tuple(notes),
        **{"norm_flags": {}, **inside},
    )


def _has_own_model(speculation: Any, target: Any) -> bool:
    """Return whether a model drafts: vLLM gives a lookup the target's configuration. The modules of
    method "mtp" are in the target's checkpoint."""
    draft = getattr(speculation, "draft_model_config", None)
    if draft is None:
        return False
    return bool(speculation.method == "mtp" or getattr(draft, "model", None) != target.model)


_HALVES = {
    "kv_producer": "this engine computes prompts, and another one decodes: the same request ids, "
    "up to the last dash, are in the run of that one",
    "kv_consumer": "another engine computes the prompts of this one: the same request ids, up to "
    "the last dash, are in the run of that one, with the time to the first token",
}
"""Notes about an engine that does one half of its requests only."""
_RULES = {"standard": EXACT, "block": BLOCK, "synthetic": SIMULATED}


def verification_of(speculation: Any) -> str:
    """Return the rule by which both runners verify drafts; for one that is not known here, vLLM's
    own name of it. vLLM before 0.31 has one rule only."""
    rule = str(getattr(speculation, "rejection_sample_method", "standard"))
    return _RULES.get(rule, rule)


def _model(config: Any, model_config: Any) -> Model:
    hf_config = model_config.hf_config
    architecture = ",".join(getattr(hf_config, "architectures", None) or ())
    name, dtype = str(model_config.model), model_config.dtype
    digest = None
    # Random weights come from no file.
    if getattr(getattr(config, "load_config", None), "load_format", None) != "dummy":
        digest = weights_digest(name, getattr(model_config, "revision", None))
    model = model_in_manifest(name, architecture, dtype, hf_config)
    return replace(model, weights_digest=digest)


def _flag(model: Any, flag: str) -> bool:
    """Return a norm flag of the loaded drafter, which may differ from the flag in its config."""
    value = getattr(getattr(model, "model", None), flag, None)
    if value is None:
        value = getattr(model.config, flag, False)
    return value is not None and value is not False


STILL = "every depth queries from one position, on the target's keys"
"""Reason why no masses are recorded."""
RECORDER = "_driftscope_recorder"
"""Attribute of a proposer that holds its recorder or timer, for hooks that run in every step. An
engine without a drafter has no proposer: its runner stands in for it here."""
NOT_VERIFIED = "what is recorded of the drafter's inside is not verified"
_LOADED = "_driftscope_loaded"
"""Attribute of a proposer whose run has not begun yet."""
_FAULT = "_driftscope_fault"
"""Attribute of a proposer without a recorder: why it has none."""
_WRITER = "_driftscope_writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProposer:
    """A proposer's properties that differ between vLLM's runners; their modules know them."""

    runner: str
    """Generation of the runner, "v1" or "v2"."""
    layer_names: frozenset[str]
    """Names of the drafter's attention layers in vLLM's configuration."""
    without_graphs: bool = True
    """Whether the runner can draft a chain without its CUDA graphs."""
    cache: CacheFaultTracker | None = None
    """Tracker of this runner's faults in the drafter's cache, if it has any."""
    draft_sampling: str | None = None
    """How draft tokens are chosen; see the manifest."""
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Made-up arguments of the drafter's forward over `discovery.ROWS` rows."""
    unmeasured: str | None = None
    """Why the masses of its attention would be wrong, whatever its layers are."""
    causal: bool | None = None
    """Whether a query of a block sees no later one; None: as its kind says."""
    queries: int | None = None
    """Number of rows of a block for each request; None: as its kind says."""


class _Loaded(NamedTuple):
    """A drafter with its recorder, before the engine has loaded its other models."""

    drafter: Drafter
    manifest: Manifest
    settings: Settings


def attach_recorder(proposer: Any, describe: Callable[[Any], LoadedProposer]) -> None:
    """Attach a recorder to the drafter `proposer.model` if the probe is on.

    `begin_recording` follows. If no recorder can be attached, it times the drafter instead. Raises
    an exception only with DRIFTSCOPE_STRICT=1.
    """
    guard = StartGuard(INTERNALS, quiet=True)
    with guard:
        settings = settings_from(os.environ)
        if settings is not None and handed_down() is None:
            _attach(proposer, describe(proposer), proposer.vllm_config, settings)
    if guard.fault is not None:
        with contextlib.suppress(Exception):  # the border: a class may have slots
            setattr(proposer, _FAULT, guard.fault)


def _attach(proposer: Any, loaded: LoadedProposer, config: Any, settings: Settings) -> None:
    try:
        drafter = open_drafter(
            proposer.model,
            loaded.layer_names,
            config,
            loaded.inputs,
            unmeasured=loaded.unmeasured,
            causal=loaded.causal,
            queries=loaded.queries,
        )
        place = place_in(config)
        ranks = int(getattr(config.parallel_config, "tensor_parallel_size", 1))
        check_can_seek(settings, ranks, getattr(config.parallel_config, "data_parallel_size", 1))
        _check_recording(settings, loaded, config)
        check_unused(settings.trace, run_id_of(config))  # before anything is written or hooked
        if isinstance(config.additional_config, dict):
            # vLLM's key of compiled graphs covers its configuration but not hooks.
            config.additional_config["driftscope"] = "residual of one element"
        writer = _writer_of(proposer, settings, config)
        settings, notes = settings_of_rank(settings, place.rank, ranks)
        recorder = assemble_recorder(
            drafter,
            settings,
            writer,
            schedules=VllmSchedules(loaded.cache),
            later_rank=place.rank > 0,
        )
        manifest = manifest_of(config, loaded.runner, settings, drafter, recorder.meter)
        manifest = replace(
            manifest,
            notes=(*manifest.notes, *notes),
            draft_sampling=loaded.draft_sampling,
            device_bytes=recorder.device_bytes,
        )
        with contextlib.ExitStack() as undo:  # all hooks or none
            undo.callback(recorder.taps.detach)
            recorder.taps.attach(proposer, "model")
            control = Control(
                settings.trace, writer, recorder.selection, recorder, governed=ranks == 1
            )
            control.watch()
            recorder.control = control
            undo.pop_all()
    except (AttributeError, KeyError, TypeError) as error:
        raise ProbeError(
            f"this vLLM's {loaded.runner} runner is not laid out as driftscope knows it "
            f"({error!r}); run `driftscope doctor`, or set DRIFTSCOPE_DISABLE=1"
        ) from error
    setattr(proposer, RECORDER, recorder)
    setattr(proposer, _LOADED, _Loaded(drafter, manifest, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModels:
    """A runner that has loaded all its models; the runners' modules know these properties."""

    runner: str
    """Generation of the runner, "v1" or "v2"."""
    config: Any
    """The engine's VllmConfig."""
    captured: Callable[[], CapturedLayers] = CapturedLayers
    """Returns the layers that the target captures."""
    timed: bool = True
    """Whether the drafter is of a kind of which only acceptance and timing are recorded."""
    hook: Callable[[Any], None] = lambda _: None
    """Hooks `propose` of a drafter whose class is not hooked."""
    draft_sampling: str | None = None


def begin_recording(proposer: Any, models: LoadedModels) -> None:
    """Begin the run, with the proposer's recorder or else with a timer.

    Raises an exception only with DRIFTSCOPE_STRICT=1.
    """
    guard = StartGuard()
    with guard:
        settings = settings_from(os.environ)
        if settings is None:
            return
        if (fault := handed_down()) is not None:  # a seam of this process could not be installed
            leave_note(settings.trace, fault, role_of(place_in(models.config)))
            return
        if recorder_of(proposer) is None:
            _begin_timed(proposer, models, settings)
        else:
            _begin_run(proposer, models)
    if guard.fault is not None:
        _undo(proposer, models, guard.fault)


def _begin_run(proposer: Any, models: LoadedModels) -> None:
    waiting: _Loaded = getattr(proposer, _LOADED)
    delattr(proposer, _LOADED)
    drafter, settings, config = waiting.drafter, waiting.settings, models.config
    hf_config = config.speculative_config.draft_model_config.hf_config
    layers = CapturedLayers()
    with StartGuard("the captured layers are not recorded"):
        layers = models.captured()
    manifest = with_captured(waiting.manifest, layers, drafter.aux_states, hf_config)
    create_run(settings.trace, manifest, join=True)
    recorder = recorder_of(proposer)
    if not isinstance(recorder, Recorder):
        return
    current = [manifest]

    def rewrite(changed: Manifest) -> None:
        current[0] = changed
        rewrite_manifest(settings.trace, changed)

    if recorder.search is not None:
        recorder.search.report = lambda sinks: rewrite(with_sinks(current[0], sinks))
    writer = _writer_of(proposer, settings, config)

    def report(verdict: WitnessResult) -> None:
        if (words := _lost(verdict)) is not None:
            if verdict.fault is None:
                warn(words)
            else:
                writer.set_gauges(reason=words)
                say(words)
        if manifest.rank == 0:
            rewrite(with_verdict(current[0], verdict))

    # V2 drafts in full graphs, of which Python sees nothing, and a chain that is drafted without
    # them needs every rank: one that the probe left out would be waited for forever.
    graphs = not config.model_config.enforce_eager
    unseen = graphs and drafter.device.type == "cuda" and manifest.runner == "v2"
    alone = max(manifest.tensor_parallel, manifest.data_parallel) == 1
    if alone or not unseen:
        ahead = unseen and settings.recording == IN_GRAPH
        layers_seen: Any = drafter.layers
        witness = StartWitness(drafter, layers_seen, proposer, of_other_run=ahead)
        recorder.witness_first(witness, report, drafts_ahead=ahead)


def _lost(verdict: WitnessResult) -> str | None:
    """Return what is not recorded or not verified, and why; None if everything agrees."""
    if verdict.fault is None:
        return None if verdict.unsure is None else f"{NOT_VERIFIED}: {verdict.unsure}"
    cost = "attention masses are not recorded" if verdict.states_agree else INTERNALS
    return f"{cost}: in {CHAINS} chains in a row, {verdict.fault}"


def with_verdict(manifest: Manifest, verdict: WitnessResult) -> Manifest:
    """Return `manifest` with what the start-up witness found."""
    found = verdict.fault or verdict.unsure or AGREES
    manifest = replace(manifest, witness=found, fed_state=verdict.fed_state)
    if (words := _lost(verdict)) is None:
        return manifest
    if verdict.fault is None:
        return replace(manifest, notes=(*manifest.notes, words))
    return replace(
        manifest,
        drafter_layers=0,
        attention_strategy=Strategy.NONE,
        distance_every=0,
        distance_edges=(),
        notes=(*(note for note in manifest.notes if note != SINKS_SOUGHT), words),
    )


def _begin_timed(proposer: Any, models: LoadedModels, settings: Settings) -> None:
    """Begin a run of acceptance and timing, for a drafter that the probe cannot look into, or of
    timing alone, without a drafter."""
    config = models.config
    support.check_engine(config)
    fault: StartFault | None = getattr(proposer, _FAULT, None)
    if fault is None and not models.timed:
        fault = _unknown(proposer, models)
    check_unused(settings.trace, run_id_of(config))
    writer = _writer_of(proposer, settings, config)
    manifest = manifest_of(config, models.runner, settings)
    if fault is not None:
        lost = f"{INTERNALS}: {fault.reason}"
        manifest = replace(manifest, notes=(*manifest.notes, lost))
        writer.set_gauges(reason=lost)
    create_run(settings.trace, replace(manifest, draft_sampling=models.draft_sampling), join=True)
    with StartGuard("the time of drafting is not recorded"):
        models.hook(proposer)
    setattr(proposer, RECORDER, StepTimer(settings, writer, VllmSchedules()))
    if fault is not None:
        say(lost)


def _unknown(proposer: Any, models: LoadedModels) -> StartFault | None:
    """Return the fault of a drafter that no hook has seen load; raises it if that is asked for."""
    guard = StartGuard(INTERNALS, quiet=True)
    with guard:
        support.check_speculation(models.config)
        raise UnknownDrafterError(
            f"this vLLM drafts with {type(proposer).__name__}, which driftscope does not know on "
            f"the {models.runner.upper()} runner; see `driftscope doctor`, or set "
            "DRIFTSCOPE_DISABLE=1"
        )
    return guard.fault


def _writer_of(proposer: Any, settings: Settings, config: Any) -> TraceWriter:
    """Return the writer of this worker, which is opened once."""
    writer: TraceWriter | None = getattr(proposer, _WRITER, None)
    if writer is None:
        writer = open_writer(settings, role_of(place_in(config)))
        setattr(proposer, _WRITER, writer)
        with StartGuard(EXPORT):
            process_writer.publish(writer, settings)
    return writer


def _undo(proposer: Any, models: LoadedModels, fault: StartFault) -> None:
    """Leave the engine as it is without the probe, and a note for its other processes."""
    with contextlib.suppress(Exception):  # the border: what remains is inert
        recorder = recorder_of(proposer)
        for name in (RECORDER, _LOADED):
            if hasattr(proposer, name):
                delattr(proposer, name)
        if recorder is not None:
            recorder.close()
        elif (writer := getattr(proposer, _WRITER, None)) is not None:
            writer.close()
    with contextlib.suppress(Exception):
        run = Path(os.environ["DRIFTSCOPE_TRACE"])
        begun = has_begun(run, run_id_of(models.config))
        leave_note(run, fault, role_of(place_in(models.config)), begun=begun)


def watch_weights(runner: Any) -> None:
    """Note each later load of weights into the models of a runner whose run has begun.

    `load_weights` is the seam that every way of updating meets: vLLM's own and those of trainers
    that reach into its workers. Weights in the kernels' layout meet `reload_weights` alone.
    """
    proposer = proposer_of(runner)
    writer: TraceWriter | None = getattr(proposer, _WRITER, None)
    if writer is None:
        return
    drafter = None if proposer is runner else getattr(proposer, "model", None)
    note_loads(writer, runner.get_model(), TARGET)
    note_loads(writer, runner, TARGET, "reload_weights")
    note_loads(writer, drafter, DRAFTER)


@contextlib.contextmanager
def unrecorded(runner: Any) -> Iterator[None]:
    """Let a runner make steps of which nothing is recorded."""
    holder = proposer_of(runner)
    if (recorder := recorder_of(holder)) is None:
        yield
        return
    delattr(holder, RECORDER)
    try:
        yield
    finally:
        setattr(holder, RECORDER, recorder)


def recorder_of(proposer: Any) -> Recorder | StepTimer | None:
    """Return the recorder or timer attached to a proposer, if any."""
    return getattr(proposer, RECORDER, None)


def proposer_of(runner: Any) -> Any:
    """Return a runner's proposer, which V1 and V2 keep under different names; without a drafter the
    runner itself, which then stands in for it."""
    holders = (getattr(runner, name, None) for name in ("drafter", "speculator"))
    return next((holder for holder in holders if holder is not None), runner)


def _check_recording(settings: Settings, loaded: LoadedProposer, config: Any) -> None:
    if settings.recording != IN_GRAPH and support.replicas_of_experts(config) > 1:
        raise ProbeError(
            f"DRIFTSCOPE_RECORDING={settings.recording} runs the drafter otherwise on one replica, "
            "and replicas that share a mixture of experts run it together: leave it at "
            f"{IN_GRAPH}"
        )
    if settings.recording != IN_GRAPH and not loaded.without_graphs:
        raise ProbeError(
            f"DRIFTSCOPE_RECORDING={settings.recording} needs chains drafted without CUDA graphs, "
            f"and driftscope cannot get them from the {loaded.runner} runner of this vLLM; "
            f"leave it at {IN_GRAPH}, and see `driftscope doctor`"
        )
