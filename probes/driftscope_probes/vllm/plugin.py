"""vLLM's `vllm.general_plugins` entry point: called once in every process that vLLM starts.

vLLM stops if a plugin raises. Nothing here does, unless DRIFTSCOPE_STRICT=1: a fault is logged
once, and handed down to the processes that this one starts. Nothing of vLLM is then hooked except
the start of its scheduler, which exports that the probe is down. This module must therefore work
where the recorder's modules cannot be imported.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftscope.errors import DriftscopeError
from driftscope.trace.status import SETTING, StartFault
from driftscope_probes.guard import hook_method
from driftscope_probes.settings import (
    fix_run_directory,
    is_disabled,
    settings_from,
    telemetry_from,
)
from driftscope_probes.start_guard import (
    EXPORT,
    HookPoint,
    StartGuard,
    hand_down,
    handed_down,
    hook_points,
    install_when_imported,
    settings_of_start,
    warn,
)

if TYPE_CHECKING:
    from driftscope.telemetry.instruments import Identity

_V1, _V2 = "driftscope_probes.vllm.runner_v1", "driftscope_probes.vllm.runner_v2"
_WORKER, _CORE = "driftscope_probes.vllm.worker", "driftscope_probes.vllm.engine_core"
_GRAPHS = "_determine_batch_execution_and_padding"
_SCHEDULER, _CAPTURED = "vllm.v1.core.sched.scheduler", "source of the captured layers"
_NEAR = "how nearly rejected tokens were right"
_PROPOSER, _DRAFTERS = "vllm.v1.spec_decode.llm_base_proposer", "vllm.v1.worker.gpu.spec_decode"


def _speculator(module: str, name: str, *, optional: bool = True) -> tuple[HookPoint, ...]:
    """Return the hooks of a class of drafters. The classes themselves are hooked, because their
    bases differ and were renamed in 0.32. DFlash's is the base of those of DFlash 2, LiLiCorr and
    DSpark."""
    return hook_points(
        f"{_DRAFTERS}.{module}.speculator",
        _V2,
        (f"{name}.load_model", "_load_model", "taps on the drafter"),
        (f"{name}.propose", "_propose", "the draft"),
        optional=optional,
    )


HOOKS = {
    "v1": (
        *hook_points(
            "vllm.v1.worker.gpu_model_runner",
            _V1,
            ("GPUModelRunner.execute_model", "_execute_model", "step time, the step's requests"),
            ("GPUModelRunner.sample_tokens", "_sample_tokens", "step time"),
            ("GPUModelRunner._get_eagle3_aux_layers_from_config", "", _CAPTURED),
        ),
        *hook_points(
            "vllm.v1.worker.gpu_model_runner",
            _V1,
            ("GPUModelRunner._sample", "_sample", _NEAR),
            optional=True,
        ),
        *hook_points(
            _PROPOSER,
            _V1,
            ("SpecDecodeBaseProposer.load_model", "_load_model", "taps on the drafter"),
            ("SpecDecodeBaseProposer.propose", "_propose", "the draft"),
            (f"SpecDecodeBaseProposer.{_GRAPHS}", "", "chains without CUDA graphs"),
        ),
        *hook_points(
            "vllm.v1.spec_decode.medusa",
            _V1,
            ("MedusaProposer.load_model", "_load_medusa", "taps on Medusa's heads"),
            ("MedusaProposer.propose", "_propose_lookup", "Medusa's draft"),
            optional=True,
        ),
    ),
    "v2": (
        *hook_points(
            "vllm.v1.worker.gpu.model_runner",
            _V2,
            ("GPUModelRunner.execute_model", "_execute_model", "step time"),
            ("GPUModelRunner.sample_tokens", "_sample_tokens", "step time, the step's requests"),
        ),
        *hook_points(
            f"{_DRAFTERS}.rejection_sampler",
            _V2,
            ("RejectionSampler.__call__", "_verify", _NEAR),
            optional=True,
        ),
        *_speculator("eagle", "EagleSpeculator", optional=False),
        *hook_points(
            f"{_DRAFTERS}.eagle.eagle3_utils",
            _V2,
            ("get_eagle3_aux_layers_from_config", "", _CAPTURED),
        ),
        *_speculator("mtp", "MTPSpeculator"),
        *_speculator("standalone_ar", "StandaloneARSpeculator"),
        *_speculator("dflash", "DFlashSpeculator"),
        *_speculator("gemma4", "Gemma4Speculator"),
        *_speculator("multi_module_mtp", "MultiModuleMTPSpeculator"),
    ),
    "worker": (
        *hook_points(
            "vllm.v1.worker.gpu_worker",
            _WORKER,
            ("Worker.load_model", "_load_model", "start of the run, once every model is loaded"),
            ("Worker.compile_or_warm_up_model", "_warm_up", "steps that are no traffic"),
            ("Worker.shutdown", "_shutdown", "closing the worker's trace"),
        ),
    ),
    "engine": (
        *hook_points(
            _SCHEDULER,
            _CORE,
            ("Scheduler.__init__", "_init", "the engine's trace"),
            ("Scheduler.update_from_output", "_update_from_output", "verification"),
            ("Scheduler._free_request", "_free_request", "finished requests"),
        ),
        *hook_points(
            "vllm.v1.engine.core",
            _CORE,
            ("EngineCore.shutdown", "_shutdown", "closing the trace"),
        ),
        *hook_points(  # vLLM before 0.32 has no names of weights
            "vllm.v1.engine.core",
            _CORE,
            ("EngineCore.set_weight_version", "_set_weight_version", "names of new weights"),
            optional=True,
        ),
    ),
}
"""Hooks by part of vLLM: V1 model runner, V2 model runner, their worker, engine core."""
_DOWN = "_driftscope_down"
"""Attribute of vLLM's scheduler that exports that nothing is recorded."""


def register() -> None:
    """Turn the probe on if DRIFTSCOPE_TRACE is set; otherwise do nothing.

    Raises an exception only with DRIFTSCOPE_STRICT=1.
    """
    if is_disabled(os.environ):
        return
    inherited = handed_down()
    if inherited is not None:
        _warn_if_corrected(inherited)
        _report_down(inherited)
        return
    guard = StartGuard()
    with guard:
        _hook_all()
    if guard.fault is not None:
        hand_down(guard.fault)
        _report_down(guard.fault)


def _warn_if_corrected(fault: StartFault) -> None:
    """Warn of settings that were corrected in the process that started this one: that process has
    loaded its plugins and fixes no run directory any more."""
    if fault.kind != SETTING:
        return
    with contextlib.suppress(DriftscopeError):
        if settings_from(os.environ) is not None:
            warn(
                f"nothing is recorded, because an earlier start of this process failed "
                f"({fault.reason}); start vLLM from a new process"
            )


def _hook_all() -> None:
    settings = settings_of_start()
    if settings is not None:
        fix_run_directory(settings)
        hooks = itertools.chain.from_iterable(HOOKS.values())
        install_when_imported(hooks, "vLLM", failed=_install_report)


def _report_down(fault: StartFault) -> None:
    """Have the engine core export that nothing is recorded, if it is to export anything."""
    with StartGuard(quiet=True):
        if telemetry_from(os.environ) is None:
            return
        import wrapt

        wrapt.register_post_import_hook(lambda module: _install_report(module, fault), _SCHEDULER)


def _install_report(module: Any, fault: StartFault) -> None:
    """Hook vllm.v1.core.sched.scheduler: its scheduler's start begins the report."""

    def around(original: Any) -> Callable[..., Any]:
        def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            report_down(scheduler, fault)

        return init

    if module.__name__ == _SCHEDULER:
        with StartGuard(quiet=True):
            hook_method(module, "Scheduler.__init__", around)


def report_down(scheduler: Any, fault: StartFault) -> None:
    """Export that nothing is recorded, if the settings ask for an export."""
    with StartGuard(EXPORT):
        if (settings := telemetry_from(os.environ)) is not None:
            from driftscope.telemetry.down import DownTelemetry

            identity = _identity(scheduler.vllm_config, fault)
            setattr(scheduler, _DOWN, DownTelemetry(identity, fault.kind, settings))


def served_name(model_config: Any) -> str | None:
    """Return the first of the names under which vLLM serves its model."""
    names = getattr(model_config, "served_model_name", None)
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)


def _label(name: str) -> str:
    """Return a model's name without the folders of a path, which labels do not show."""
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".", "~")) else name


def _identity(config: Any, fault: StartFault) -> Identity:
    import vllm

    from driftscope.telemetry.instruments import Identity

    model, speculation = config.model_config, getattr(config, "speculative_config", None)
    parallel = config.parallel_config
    drafter = getattr(speculation, "model", None) or getattr(speculation, "method", "")
    return Identity(
        model=_label(served_name(model) or str(model.model)),
        drafter=_label(str(drafter)),
        engine="vllm",
        engine_version=str(vllm.__version__).partition("+")[0],
        replica=int(getattr(parallel, "data_parallel_index", 0) or 0),
        start=fault.start,
    )
