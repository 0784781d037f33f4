"""SGLang's `sglang.srt.plugins` entry point, called once in every process that SGLang starts,
and what of SGLang this version supports.

A fault here ends the recording and not the engine: it is logged once, and handed down to the
processes that this one starts. SGLang's speculation moves between releases: the seams of 0.5.9,
0.5.14 and 0.5.23 all differ. So the probe refuses a version that it does not know, where it only
warns of an unknown vLLM.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os

from driftscope.errors import ProbeError
from driftscope_probes.settings import fix_run_directory, is_disabled
from driftscope_probes.start_guard import (
    HookPoint,
    StartGuard,
    hand_down,
    handed_down,
    hook_points,
    install_when_imported,
    settings_of_start,
)

TESTED = ("0.5.23",)


def check_version(version: str) -> None:
    """Raise ProbeError for a version of SGLang that was not tested."""
    if version.partition("+")[0] not in TESTED:
        raise ProbeError(
            f"SGLang {version} is not supported by this driftscope, which was tested with "
            f"{', '.join(TESTED)}; `driftscope doctor --engine sglang` shows which seam differs"
        )


_OURS, _SCHEDULER = "driftscope_probes.sglang.worker", "driftscope_probes.sglang.scheduler"
_PROCESSOR = "SchedulerBatchResultProcessor.process_batch_result"
RECORDED = (
    "drafters of SGLang's EAGLE worker with speculative_eagle_topk 1, as far as a forward at the "
    "start shows their states: attention mass, RMS, top-1 probability and entropy by depth; of "
    "trees, draft models and n-grams: acceptance and timing; without a drafter: timing. Per "
    "request: TTFT, TPOT, lengths, finish reason"
)
HOOKS = {
    "plugin": (HookPoint("sglang.srt.plugins", "load_plugins", "loading the probe"),),
    "worker": (
        *hook_points(
            "sglang.srt.speculative.eagle_worker_v2",
            _OURS,
            ("EAGLEWorkerV2.forward_batch_generation", "step", "step time, the step's requests"),
            ("EagleDraftWorker.init_attention_backends", "init_drafter", "start of the run"),
            ("EagleDraftWorker.draft", "draft", "the draft from depth 2 on"),
            ("EagleDraftWorker._draft_extend_for_prefill", "extend_for_prefill", "depth 1"),
            ("EagleDraftWorker._draft_extend_for_decode", "extend_for_decode", "depth 1"),
        ),
        HookPoint("sglang.srt.layers.radix_attention", "RadixAttention.forward", "queries"),
        HookPoint(
            "sglang.srt.layers.logits_processor", "LogitsProcessor.forward", "states and logits"
        ),
        *hook_points(
            "sglang.srt.managers.tp_worker",
            _OURS,
            ("TpModelWorker.init_attention_backends", "init_target", "start without a drafter"),
            ("TpModelWorker.forward_batch_generation", "step", "step time without a drafter"),
        ),
        *hook_points(
            "sglang.srt.speculative.ngram_worker",
            _OURS,
            ("NGRAMWorker.alloc_memory_pool", "init_ngram", "start with n-grams"),
            ("NGRAMWorker.forward_batch_generation", "step", "step time with n-grams"),
            ("NGRAMWorker._prepare_for_speculative_decoding", "draft", "the n-grams' draft"),
        ),
    ),
    "scheduler": (
        *hook_points(
            "sglang.srt.managers.scheduler_components.batch_result_processor",
            _SCHEDULER,
            (f"{_PROCESSOR}_decode", "process_decode", "verification, finished requests"),
            (f"{_PROCESSOR}_prefill", "process_prefill", "first tokens"),
        ),
        *hook_points(
            "sglang.srt.managers.scheduler",
            _SCHEDULER,
            ("Scheduler.send_abort_output", "abort", "requests that end in the queue"),
            ("Scheduler.record_weight_version_change", "name_weights", "updates of the weights"),
        ),
    ),
}
"""Hooks by part of SGLang."""


def register() -> None:
    """Turn the probe on if DRIFTSCOPE_TRACE is set; otherwise do nothing.

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
    settings = settings_of_start()
    if settings is not None:
        check_version(importlib.metadata.version("sglang"))
        fix_run_directory(settings)
        hooks = itertools.chain.from_iterable(HOOKS.values())
        install_when_imported(hooks, "SGLang", doctor="driftscope doctor --engine sglang")
