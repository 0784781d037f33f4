"""The places in SGLang that the probe hooks or reads."""

from __future__ import annotations

from driftscope_probes.engine import HookPoint

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor"
RECORDED = (
    "EAGLE-1, 3 and 3.1 of Llama's layout, with speculative_eagle_topk 1: attention mass, RMS, "
    "top-1 probability and entropy by depth; of EAGLE's other drafters, of trees and of n-grams: "
    "acceptance and timing. Per request: TTFT, TPOT, lengths, finish reason"
)
HOOKS = {
    "plugin": (
        HookPoint(module="sglang.srt.plugins", name="load_plugins", purpose="loading the probe"),
    ),
    "worker": (
        HookPoint(
            module=_WORKER,
            name="EAGLEWorkerV2.forward_batch_generation",
            purpose="step time, the step's requests",
        ),
        HookPoint(
            module=_WORKER,
            name="EagleDraftWorker.init_attention_backends",
            purpose="start of the run, once the drafter is loaded",
        ),
        HookPoint(
            module=_WORKER, name="EagleDraftWorker.draft", purpose="the draft from depth 2 on"
        ),
        HookPoint(
            module=_WORKER,
            name="EagleDraftWorker._draft_extend_for_prefill",
            purpose="depth 1 after a prompt",
        ),
        HookPoint(
            module=_WORKER,
            name="EagleDraftWorker._draft_extend_for_decode",
            purpose="depth 1 after a verification",
        ),
        HookPoint(
            module="sglang.srt.layers.radix_attention",
            name="RadixAttention.forward",
            purpose="queries",
        ),
        HookPoint(
            module="sglang.srt.models.llama_eagle3",
            name="LlamaForCausalLMEagle3",
            purpose="the drafter whose states are recorded",
        ),
        HookPoint(
            module="sglang.srt.models.llama_eagle",
            name="LlamaForCausalLMEagle",
            purpose="an EAGLE-1 drafter, whose states are recorded, too",
        ),
        HookPoint(
            module="sglang.srt.models.mimo_mtp",
            name="MiMoMTP",
            purpose="MiMo's head, whose states are recorded, too",
        ),
    ),
    "scheduler": (
        HookPoint(
            module=_PROCESSOR,
            name="SchedulerBatchResultProcessor.process_batch_result_decode",
            purpose="verification, finished requests",
        ),
        HookPoint(
            module=_PROCESSOR,
            name="SchedulerBatchResultProcessor.process_batch_result_prefill",
            purpose="first tokens",
        ),
        HookPoint(
            module="sglang.srt.managers.scheduler",
            name="Scheduler.send_abort_output",
            purpose="requests that end in the queue",
        ),
    ),
}
"""Hooks by part of SGLang."""
