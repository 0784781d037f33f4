"""Exports from vLLM's engine core that the probe records nothing.

This module must work where the recorder's modules cannot be imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from driftscope.telemetry.export.down_telemetry import DownIdentity, DownTelemetry
from driftscope.trace.format.start_fault import StartFault
from driftscope_probes.guard import hook_method
from driftscope_probes.settings import telemetry_from
from driftscope_probes.start_guard import EXPORT, StartGuard

_ATTRIBUTE = "_driftscope_down"


def install_down_report(module: Any, fault: StartFault) -> None:
    """Hook vllm.v1.core.sched.scheduler: its scheduler's start begins the report."""

    def around(original: Any) -> Callable[..., Any]:
        def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            report_down(scheduler, fault)

        return init

    hook_method(module, "Scheduler.__init__", around)


def report_down(scheduler: Any, fault: StartFault) -> None:
    """Export that nothing is recorded, if the settings ask for an export."""
    with StartGuard(EXPORT):
        if (settings := telemetry_from(os.environ)) is not None:
            identity = _identity(scheduler.vllm_config, fault)
            setattr(scheduler, _ATTRIBUTE, DownTelemetry(identity, fault.kind, settings))


def served_name(model_config: Any) -> str | None:
    """Return the first of the names under which vLLM serves its model."""
    names = getattr(model_config, "served_model_name", None)
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)


def _label(name: str) -> str:
    """Return a model's name without the folders of a path, which labels do not show."""
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".", "~")) else name


def _identity(config: Any, fault: StartFault) -> DownIdentity:
    import vllm

    model, speculation = config.model_config, getattr(config, "speculative_config", None)
    parallel = config.parallel_config
    drafter = getattr(speculation, "model", None) or getattr(speculation, "method", "")
    return DownIdentity(
        model=_label(served_name(model) or str(model.model)),
        drafter=_label(str(drafter)),
        engine="vllm",
        engine_version=str(vllm.__version__).partition("+")[0],
        replica=int(getattr(parallel, "data_parallel_index", 0) or 0),
        start=fault.start,
    )
