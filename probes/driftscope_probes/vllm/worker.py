"""Hooks vLLM's worker after its models are loaded: recording begins then.

Written against vllm.v1.worker.gpu_worker, 0.25 to 0.32; the CPU's worker inherits from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftscope_probes.guard import hook_method
from driftscope_probes.start_guard import StartGuard
from driftscope_probes.vllm import runner_v1, runner_v2


def install_worker(module: Any) -> None:
    """Hook vllm.v1.worker.gpu_worker."""
    hook_method(module, "Worker.load_model", _load_model)


def _load_model(original: Any) -> Callable[..., Any]:
    def load_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        with StartGuard():
            _begin(worker.model_runner)
        return result

    return load_model


def _begin(runner: Any) -> None:
    if getattr(runner, "speculator", None) is not None:
        runner_v2.models_loaded(runner)
    elif getattr(runner, "drafter", None) is not None:
        runner_v1.models_loaded(runner)
