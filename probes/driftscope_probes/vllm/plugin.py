"""vLLM's `vllm.general_plugins` entry point: called once in every process that vLLM starts."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from driftscope.errors import ProbeError
from driftscope_probes.base.settings import fix_run_directory, settings_from

SEAMS = (
    ("vllm.v1.worker.gpu_model_runner", "runner_v1", "install_runner"),
    ("vllm.v1.spec_decode.llm_base_proposer", "runner_v1", "install_proposer"),
    ("vllm.v1.worker.gpu.model_runner", "runner_v2", "install_runner"),
    ("vllm.v1.worker.worker_base", "control_rpc", "install_worker"),
    ("vllm.v1.spec_decode.medusa", "runner_v1", "install_medusa"),
    *(
        (f"vllm.v1.worker.gpu.spec_decode.{name}.speculator", "runner_v2", "install_speculator")
        for name in ("eagle", "mtp", "standalone_ar", "dflash", "multi_module_mtp")
    ),
    ("vllm.v1.worker.gpu_worker", "worker", "install_worker"),
    ("vllm.v1.core.sched.scheduler", "scheduler.engine_core", "install_scheduler"),
    ("vllm.v1.engine.core", "scheduler.engine_core", "install_engine"),
)
"""vLLM module, our module that hooks it, and that module's installer. The installer runs when vLLM
imports the vLLM module, so that a process which never drafts pays nothing."""


def register() -> None:
    """Turn the probe on if DRIFTSCOPE_TRACE or DRIFTSCOPE_CONFIG is set; otherwise do nothing.

    Raises ProbeError for settings that cannot be used, which stops the engine's start.
    """
    settings = settings_from(os.environ)
    if settings is None:
        return
    fix_run_directory(settings)
    import wrapt

    importlib.import_module("driftscope_probes.base.cpu_cores")  # reads the process's cores now
    for module, ours, installer in SEAMS:
        wrapt.register_post_import_hook(_installer(ours, installer), module)


def _installer(ours: str, name: str) -> Callable[[Any], None]:
    def install(module: Any) -> None:
        try:
            getattr(importlib.import_module(f"driftscope_probes.vllm.{ours}"), name)(module)
        except AttributeError as error:
            raise ProbeError(
                f"{module.__name__} of this vLLM is not laid out as driftscope knows it ({error}); "
                "run `driftscope doctor`, or set DRIFTSCOPE_DISABLE=1"
            ) from error

    return install
