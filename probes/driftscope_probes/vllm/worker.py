"""Hooks vLLM's worker: recording begins after its models are loaded.

Written against vllm.v1.worker.gpu_worker, 0.25 to 0.32; the CPU's worker inherits from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from driftscope_probes.start_guard import StartGuard
from driftscope_probes.vllm import runner_v1, runner_v2
from driftscope_probes.vllm.attach import (
    LoadedModels,
    begin_recording,
    proposer_of,
    recorder_of,
    unrecorded,
    watch_weights,
)
from driftscope_probes.vllm.support import is_last_stage


def _load_model(original: Any) -> Callable[..., Any]:
    def load_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        with StartGuard():
            _begin(worker)
        with StartGuard("updates of the weights are not noted"):
            watch_weights(worker.model_runner)
        return result

    return load_model


def _warm_up(original: Any) -> Callable[..., Any]:
    """Pass over the steps that vLLM's V2 runner makes up at its start. They are no traffic, and
    nothing to judge the probe by: their drafts need slots beyond those of their requests, so that
    all requests write one slot at once."""

    def compile_or_warm_up_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
        with unrecorded(getattr(worker, "model_runner", None)):
            return original(worker, *args, **kwargs)

    return compile_or_warm_up_model


def _shutdown(original: Any) -> Callable[..., Any]:
    """Close the trace first: on a busy machine vLLM kills a worker that it still tears down."""

    def shutdown(worker: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # the border: a worker ends as it would without
            if (recorder := recorder_of(proposer_of(worker.model_runner))) is not None:
                recorder.close()
        return original(worker, *args, **kwargs)

    return shutdown


def _begin(worker: Any) -> None:
    runner, config = worker.model_runner, worker.vllm_config
    if getattr(runner, "speculator", None) is not None:
        runner_v2.models_loaded(runner)
    elif getattr(runner, "drafter", None) is not None:
        runner_v1.models_loaded(runner)
    elif config.speculative_config is None and is_last_stage(config):
        version = "v2" if getattr(worker, "use_v2_model_runner", False) else "v1"
        begin_recording(runner, LoadedModels(runner=version, config=config))
