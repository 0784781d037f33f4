"""SGLang's `sglang.srt.plugins` entry point, called once in every process that SGLang starts,
and what of SGLang this version supports.

A fault here ends the recording and not the engine: it is logged once, and handed down to the
processes that this one starts. SGLang's speculation moves between releases: the seams of 0.5.9,
0.5.14 and 0.5.23 all differ. So the probe refuses a version that it does not know, where it only
warns of an unknown vLLM.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

from driftscope.errors import ProbeError
from driftscope_probes.engine import HookPoint
from driftscope_probes.settings import engine_cores, fix_run_directory, is_disabled, settings_from
from driftscope_probes.start_guard import (
    WARNED,
    StartGuard,
    hand_down,
    handed_down,
    unknown_settings,
    warn,
)

TESTED = ("0.5.23",)


def check_version(version: str) -> None:
    """Raise ProbeError for a version of SGLang that was not tested."""
    if version.partition("+")[0] not in TESTED:
        raise ProbeError(
            f"SGLang {version} is not supported by this driftscope, which was tested with "
            f"{', '.join(TESTED)}; `driftscope doctor --engine sglang` shows which seam differs"
        )


_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor"
RECORDED = (
    "EAGLE-1, 3 and 3.1 of Llama's layout, with speculative_eagle_topk 1: attention mass, RMS, "
    "top-1 probability and entropy by depth; of EAGLE's other drafters, of trees and of n-grams: "
    "acceptance and timing. Per request: TTFT, TPOT, lengths, finish reason"
)
_MODELS = "sglang.srt.models"
HOOKS = {
    "plugin": (HookPoint("sglang.srt.plugins", "load_plugins", "loading the probe"),),
    "worker": (
        HookPoint(
            _WORKER, "EAGLEWorkerV2.forward_batch_generation", "step time, the step's requests"
        ),
        HookPoint(
            _WORKER,
            "EagleDraftWorker.init_attention_backends",
            "start of the run, once the drafter is loaded",
        ),
        HookPoint(_WORKER, "EagleDraftWorker.draft", "the draft from depth 2 on"),
        HookPoint(_WORKER, "EagleDraftWorker._draft_extend_for_prefill", "depth 1 after a prompt"),
        HookPoint(
            _WORKER, "EagleDraftWorker._draft_extend_for_decode", "depth 1 after a verification"
        ),
        HookPoint("sglang.srt.layers.radix_attention", "RadixAttention.forward", "queries"),
        HookPoint(
            f"{_MODELS}.llama_eagle3",
            "LlamaForCausalLMEagle3",
            "the drafter whose states are recorded",
        ),
        HookPoint(
            f"{_MODELS}.llama_eagle",
            "LlamaForCausalLMEagle",
            "an EAGLE-1 drafter, whose states are recorded, too",
        ),
        HookPoint(f"{_MODELS}.mimo_mtp", "MiMoMTP", "MiMo's head, whose states are recorded, too"),
    ),
    "scheduler": (
        HookPoint(
            _PROCESSOR,
            "SchedulerBatchResultProcessor.process_batch_result_decode",
            "verification, finished requests",
        ),
        HookPoint(
            _PROCESSOR,
            "SchedulerBatchResultProcessor.process_batch_result_prefill",
            "first tokens",
        ),
        HookPoint(
            "sglang.srt.managers.scheduler",
            "Scheduler.send_abort_output",
            "requests that end in the queue",
        ),
    ),
}
"""Hooks by part of SGLang."""


SEAMS = (
    ("sglang.srt.speculative.eagle_worker_v2", "worker", "install_worker"),
    ("sglang.srt.speculative.ngram_worker", "worker", "install_ngram"),
    (
        "sglang.srt.managers.scheduler_components.batch_result_processor",
        "scheduler",
        "install_processor",
    ),
    ("sglang.srt.managers.scheduler", "scheduler", "install_scheduler"),
)
"""SGLang module, our module that hooks it, and that module's installer. The installer runs when
SGLang imports the module, so that a process which never drafts pays nothing."""


def register() -> None:
    """Turn the probe on if DRIFTSCOPE_TRACE or DRIFTSCOPE_CONFIG is set; otherwise do nothing.

    With DRIFTSCOPE_STRICT=1 a fault ends the process: SGLang catches exceptions of its plugins.
    """
    if is_disabled(os.environ) or handed_down() is not None:
        return
    guard = StartGuard()
    try:
        with guard:
            _hook_all()
    except Exception as error:
        raise SystemExit(f"driftscope: {error}") from error
    if guard.fault is not None:
        hand_down(guard.fault)


def _hook_all() -> None:
    if WARNED not in os.environ:  # once for all processes of a start
        for line in unknown_settings(os.environ):
            warn(line)
            os.environ[WARNED] = "1"
    settings = settings_from(os.environ)
    if settings is None:
        return
    check_version(importlib.metadata.version("sglang"))
    fix_run_directory(settings)
    import wrapt

    engine_cores()
    for module, ours, installer in SEAMS:
        wrapt.register_post_import_hook(_installer(ours, installer), module)


def _installer(ours: str, name: str) -> Callable[[Any], None]:
    """Return a hook that installs a seam; if it cannot, this process records nothing."""

    def install(module: Any) -> None:
        if handed_down() is not None:
            return
        guard = StartGuard()
        with guard:
            _install_seam(ours, name, module)
        if guard.fault is not None:
            hand_down(guard.fault)

    return install


def _install_seam(ours: str, name: str, module: Any) -> None:
    try:
        getattr(importlib.import_module(f"driftscope_probes.sglang.{ours}"), name)(module)
    except AttributeError as error:
        raise ProbeError(
            f"{module.__name__} of this SGLang is organised differently from the versions that "
            f"driftscope knows ({error}); run `driftscope doctor --engine sglang`, or set "
            "DRIFTSCOPE_DISABLE=1"
        ) from error
