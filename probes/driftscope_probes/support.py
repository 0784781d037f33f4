"""What this version can record, in one list, and the checks that refuse the rest at start-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftscope.errors import ProbeError

TESTED_VLLM = ("0.25.1", "0.27.0", "0.31.0", "0.32.0")
"""Versions that the test suite or a release check has run; others work while every hook holds."""
OLDEST_VLLM = (0, 25)
METHODS = ("eagle3",)
DRAFTERS = ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")
RECORDED = (
    "per chain and depth: attention mass on sink, prompt, generated and self slots; RMS of the "
    "hidden state fed in, pre-norm, post-norm and fed forward; top-1 probability and entropy. "
    "Per chain: RMS of the captured target layers before and after their norms and of the fc "
    "output. "
    "Per decode step: drafted and accepted tokens, or why nothing was drafted. "
    "Per request: TTFT, TPOT, lengths, finish reason."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One place in vLLM that the probe takes hold of."""

    module: str
    name: str
    """Dotted name inside the module."""
    purpose: str


HOOKS = {
    "v1": (
        Hook(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner.propose_draft_token_ids",
            purpose="the step's requests",
        ),
        Hook(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner.execute_model",
            purpose="step time",
        ),
        Hook(
            module="vllm.v1.worker.gpu_model_runner",
            name="GPUModelRunner.sample_tokens",
            purpose="step time",
        ),
        Hook(
            module="vllm.v1.spec_decode.llm_base_proposer",
            name="SpecDecodeBaseProposer.load_model",
            purpose="taps on the drafter",
        ),
        Hook(
            module="vllm.v1.spec_decode.llm_base_proposer",
            name="SpecDecodeBaseProposer.propose",
            purpose="the draft itself",
        ),
    ),
    "v2": (
        Hook(
            module="vllm.v1.worker.gpu.model_runner",
            name="GPUModelRunner.execute_model",
            purpose="step time",
        ),
        Hook(
            module="vllm.v1.worker.gpu.model_runner",
            name="GPUModelRunner.sample_tokens",
            purpose="step time and the step's requests",
        ),
        Hook(
            module="vllm.v1.worker.gpu.spec_decode.eagle.speculator",
            name="EagleSpeculator.load_model",
            purpose="taps on the drafter",
        ),
        Hook(
            module="vllm.v1.worker.gpu.spec_decode.eagle.speculator",
            name="EagleSpeculator.propose",
            purpose="the draft itself",
        ),
    ),
    "worker": (
        Hook(
            module="vllm.v1.worker.worker_base",
            name="WorkerBase",
            purpose="control while it runs",
        ),
    ),
    "engine": (
        Hook(
            module="vllm.v1.core.sched.scheduler",
            name="Scheduler.update_from_output",
            purpose="verification",
        ),
        Hook(
            module="vllm.v1.core.sched.scheduler",
            name="Scheduler._free_request",
            purpose="finished requests",
        ),
        Hook(
            module="vllm.v1.engine.core",
            name="EngineCore.shutdown",
            purpose="closing the trace",
        ),
    ),
}
"""By seam: V1 model runner, V2 model runner, their worker, engine core."""


def check_speculation(config: Any) -> None:
    """Raise ProbeError when the engine's `VllmConfig` asks for nothing that can be recorded."""
    speculation = getattr(config, "speculative_config", None)
    if speculation is None:
        raise ProbeError(
            "DRIFTSCOPE_TRACE is set, but this engine does not speculate: start it with "
            "--speculative-config, or unset DRIFTSCOPE_TRACE"
        )
    if speculation.method not in METHODS:
        raise ProbeError(
            f"speculation method {speculation.method!r} is not supported by this driftscope; "
            f"supported: {', '.join(METHODS)}"
        )
    parallel = config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ProbeError(f"{name} > 1 is not supported by this driftscope")


def check_drafter(model: Any, layers: dict[str, Any]) -> None:
    """Raise ProbeError when a loaded drafter has a part that would be measured wrongly."""
    kind = type(model).__name__
    if kind not in DRAFTERS:
        raise ProbeError(
            f"drafter {kind} is not supported by this driftscope; supported: {', '.join(DRAFTERS)}"
        )
    if getattr(model, "use_parallel_drafting", False):
        raise ProbeError("parallel drafting has no depth to record: not supported")
    if not layers:
        raise ProbeError(f"drafter {kind}: no attention layer found")
    for name, layer in layers.items():
        if found := _unsupported_attention(layer.impl):
            raise ProbeError(f"drafter layer {name} has {found}: not supported by this driftscope")


def _unsupported_attention(impl: Any) -> str | None:
    window = getattr(impl, "sliding_window", None)
    if window not in (None, -1, (-1, -1)):
        return "a sliding window"
    for name, words in (
        ("sinks", "learned sink biases"),
        ("logits_soft_cap", "a logits soft cap"),
        ("alibi_slopes", "ALiBi slopes"),
    ):
        value = getattr(impl, name, None)
        if value is not None and not (isinstance(value, int | float) and value == 0):
            return words
    if str(getattr(impl, "kv_cache_dtype", "auto")).startswith("fp8"):
        return "an fp8 KV cache"
    return None
