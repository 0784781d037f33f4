"""Names under which engines themselves publish speculative decoding on their Prometheus page.

Sources, as of November 2026: vllm/v1/spec_decode/metrics.py (vLLM 0.33), sglang's
srt/metrics/collector.py (0.5.23), tensorrt_llm/metrics/collector.py, llama.cpp's
tools/server/server-task.cpp and lmdeploy/metrics/loggers.py (0.18).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class EngineName(StrEnum):
    """Name of an engine on the command line."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    LMDEPLOY = "lmdeploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """Names of one engine's metrics; None for what it does not publish."""

    title: str
    """Name of the engine as it is written."""
    rounds: str | None = None
    """Counter of drafts that were verified."""
    accepted: str | None = None
    """Counter of accepted draft tokens, without the target's own token of each round."""
    accepted_at: str | None = None
    """Counter of rounds that accepted at least up to a position."""
    drafted_at: str | None = None
    """Counter of rounds that drafted a position."""
    position: str = "position"
    """Label of a position, which counts from 0."""
    length: str | None = None
    """Gauge of the acceptance length of the last log interval, the target's own token included."""
    generated: str | None = None
    """Counter of generated tokens, for an engine that counts no accepted ones."""
    requests: str | None = None
    """Counter of finished requests."""
    model: str | None = "model_name"
    """Label of the served model."""
    ttft: str | None = None
    """Histogram of the time to the first token, in seconds."""
    tpot: str | None = None
    """Histogram of the time per output token of a request, in seconds."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the samples on a page."""
        plain = (self.rounds, self.accepted, self.accepted_at, self.drafted_at, self.length)
        histograms = (name for name in (self.ttft, self.tpot) if name)
        parts = (f"{name}{part}" for name in histograms for part in ("_sum", "_count"))
        return frozenset(name for name in (*plain, self.requests, *parts) if name)

    @property
    def of_speculation(self) -> frozenset[str]:
        """Names of which a page has at least one if the engine speculates."""
        names = (self.rounds, self.accepted, self.accepted_at, self.length)
        return frozenset(name for name in names if name)


def _counters(
    title: str, prefix: str, *, model: str | None = "model_name", **more: str
) -> EngineMetrics:
    """Return the names of engines that took over vLLM's."""
    return EngineMetrics(
        title=title,
        rounds=f"{prefix}:spec_decode_num_drafts_total",
        accepted=f"{prefix}:spec_decode_num_accepted_tokens_total",
        accepted_at=f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total",
        model=model,
        **more,
    )


ENGINES: Mapping[EngineName, EngineMetrics] = {
    EngineName.VLLM: _counters(
        "vLLM",
        "vllm",
        requests="vllm:request_success_total",
        ttft="vllm:time_to_first_token_seconds",
        tpot="vllm:request_time_per_output_token_seconds",
    ),
    EngineName.SGLANG: EngineMetrics(
        title="SGLang",
        rounds="sglang:spec_verify_calls_total",
        length="sglang:spec_accept_length",
        generated="sglang:generation_tokens_total",
        requests="sglang:num_requests_total",
        ttft="sglang:time_to_first_token_seconds",
    ),
    EngineName.TRTLLM: EngineMetrics(
        title="TensorRT-LLM",
        accepted="trtllm_spec_decode_num_accepted_tokens_total",
        accepted_at="trtllm_spec_decode_accepted_tokens_total",
        drafted_at="trtllm_spec_decode_drafted_tokens_total",
        position="token_position",
        requests="trtllm_request_success_total",
        ttft="trtllm_time_to_first_token_seconds",
        tpot="trtllm_time_per_output_token_seconds",
    ),
    EngineName.LLAMACPP: _counters("llama.cpp", "llamacpp", model=None),
    EngineName.LMDEPLOY: _counters("LMDeploy", "lmdeploy"),
}
"""Metrics of each engine."""
