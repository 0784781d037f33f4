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

from driftscope.errors import ProbeError
from driftscope_probes.engine import HookPoint
from driftscope_probes.settings import fix_run_directory, is_disabled
from driftscope_probes.start_guard import (
    StartGuard,
    hand_down,
    handed_down,
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


_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_TARGET = "sglang.srt.managers.tp_worker"
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor"
RECORDED = (
    "drafters of SGLang's EAGLE worker with speculative_eagle_topk 1, as far as a forward at the "
    "start shows their states: attention mass, RMS, top-1 probability and entropy by depth; of "
    "trees, draft models and n-grams: acceptance and timing; without a drafter: timing. Per "
    "request: TTFT, TPOT, lengths, finish reason"
)
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
            _TARGET,
            "TpModelWorker.init_attention_backends",
            "start of the run of an engine that does not speculate",
        ),
        HookPoint(_TARGET, "TpModelWorker.forward_batch_generation", "step time of such an engine"),
        HookPoint(
            "sglang.srt.layers.logits_processor", "LogitsProcessor.forward", "states and logits"
        ),
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
        HookPoint(
            "sglang.srt.managers.scheduler",
            "Scheduler.record_weight_version_change",
            "updates of the weights",
        ),
    ),
}
"""Hooks by part of SGLang."""


_SCHEDULER = "driftscope_probes.sglang.scheduler"
SEAMS = (
    (_WORKER, "driftscope_probes.sglang.worker", "install_worker"),
    ("sglang.srt.speculative.ngram_worker", "driftscope_probes.sglang.worker", "install_ngram"),
    (_TARGET, "driftscope_probes.sglang.worker", "install_target"),
    (_PROCESSOR, _SCHEDULER, "install_processor"),
    ("sglang.srt.managers.scheduler", _SCHEDULER, "install_scheduler"),
)
"""See `Seam`."""


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
        install_when_imported(SEAMS, "SGLang", doctor="driftscope doctor --engine sglang")
