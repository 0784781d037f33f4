"""Refuses at start-up an engine or a drafter that would be recorded incorrectly."""

from __future__ import annotations

from typing import Any

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope_probes.drafter import Kind
from driftscope_probes.vllm.configuration.drafter_kinds import EAGLE3, methods


def check_speculation(config: Any) -> None:
    """Raise ProbeError if nothing of an engine with this `VllmConfig` can be recorded, and
    UnknownDrafterError if the inside of its drafter cannot be."""
    check_engine(config)
    method = config.speculative_config.method
    if method not in methods():
        raise UnknownDrafterError(
            f"speculation method {method!r} is not supported by this driftscope; "
            f"supported: {', '.join(methods())}"
        )


def check_engine(config: Any) -> None:
    """Raise ProbeError if nothing of the engine can be recorded, whatever drafts."""
    check_speculates(config)
    _check_parallelism(config.parallel_config)


def check_speculates(config: Any) -> None:
    """Raise ProbeError if the engine does not speculate."""
    speculation = getattr(config, "speculative_config", None)
    if speculation is None:
        raise ProbeError(
            "DRIFTSCOPE_TRACE is set, but this engine does not speculate: start it with "
            "--speculative-config, or unset DRIFTSCOPE_TRACE"
        )


def _check_parallelism(parallel: Any) -> None:
    """Raise ProbeError for parallelism that cannot be recorded.

    Tensor, pipeline or data parallelism can be recorded. Replicas of a dense model do not know of
    each other. Replicas of a mixture of experts do, and some of them draft without a request so
    that the others can run; they are refused.
    """
    sizes = {name: getattr(parallel, f"{name}_size", 1) for name in _PARALLELISM}
    for name, detail in _PARALLELISM.items():
        if sizes[name] > 1 and detail is not None:
            raise ProbeError(f"{name}_size > 1{detail} is not supported by this driftscope")
    if sizes["tensor_parallel"] > 1 and sizes["pipeline_parallel"] > 1:
        raise ProbeError(
            "tensor_parallel_size and pipeline_parallel_size > 1 at once are not supported by this "
            "driftscope"
        )


_PARALLELISM = {
    "tensor_parallel": None,
    "pipeline_parallel": None,
    "data_parallel": " for a mixture of experts",
    "prefill_context_parallel": "",
    "decode_context_parallel": "",
}
"""Kinds of parallelism -> words of the error that refuses it; None: supported."""


def check_drafter(model: Any, layers: dict[str, Any], kind: Kind = EAGLE3) -> None:
    """Raise UnknownDrafterError if a part of a loaded drafter would be measured incorrectly."""
    if kind.attention and not layers:
        raise UnknownDrafterError(f"drafter {type(model).__name__}: no attention layer found")
    for name, layer in layers.items():
        if reason := _unsupported_attention(layer):
            raise UnknownDrafterError(
                f"drafter layer {name} has {reason}: not supported by this driftscope"
            )


def _unsupported_attention(layer: Any) -> str | None:
    impl = layer.impl
    if type(layer).__name__ == "ChunkedLocalAttention":
        return "attention in chunks"
    if getattr(layer, "attn_type", "decoder") != "decoder":
        return "attention that is not a decoder's"
    if getattr(impl, "is_sparse", False):
        return "sparse attention"
    if getattr(impl, "alibi_slopes", None) is not None:
        return "ALiBi slopes"
    if str(getattr(impl, "kv_cache_dtype", "auto")).startswith("fp8"):
        return "an fp8 KV cache"
    return None
