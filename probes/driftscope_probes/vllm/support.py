"""The parts of vLLM that this version supports: the places that the probe hooks, the versions in
which they were tested, the kinds of drafter, and the checks that refuse an engine at start-up.

The start-up check and `driftscope doctor` read these lists. A drafter of another method is recorded
like one without a model: acceptance and timing.
"""

from __future__ import annotations

import inspect
from typing import Any

from driftscope.errors import ProbeError, Unknown, UnknownDrafterError
from driftscope.trace.ranks import Place
from driftscope.vocabulary import PRENORM_RMS
from driftscope_probes import settings
from driftscope_probes.drafter import DrafterKind

TESTED_VLLM = ("0.25.1", "0.27.0", "0.31.0", "0.32.0")
"""Versions that the test suite or a release check has run; others work if every hook exists."""
OLDEST_VLLM = (0, 25)
RECORDED = (
    "per chain and depth: attention mass on sink, prompt, generated and self slots; RMS of the "
    "hidden state fed in, pre-norm, post-norm and fed forward; top-1 probability and entropy. "
    "Per chain: RMS of the captured target layers before and after their norms and of the fc "
    "output. "
    "Per decode step: drafted and accepted tokens, or why nothing was drafted. "
    "Per request: TTFT, TPOT, lengths, finish reason. Without a drafter: requests and steps alone."
)


EAGLE3 = DrafterKind(name="EAGLE-3 / 3.1", methods=("eagle3",))
KINDS = (
    EAGLE3,
    DrafterKind(name="P-EAGLE", methods=("eagle3",), parallel=True, block=True),
    DrafterKind(name="EAGLE-1", methods=("eagle",)),
    DrafterKind(
        name="DFlash", methods=("dflash",), fed=False, block=True, causal=False, lead=1, ahead=1
    ),
    DrafterKind(name="DSpark", methods=("dspark",), fed=False, block=True, causal=False, lead=1),
    DrafterKind(name="MTP", methods=("mtp",)),
    DrafterKind(name="draft model", methods=("draft_model",), fed=False, lead=1),
    DrafterKind(
        name="Medusa",
        methods=("medusa",),
        attention=False,
        outputs={PRENORM_RMS: 0},
        block=True,
        heads=True,
    ),
    DrafterKind(name="n-gram", methods=("ngram",), model=False),
    DrafterKind(name="n-gram on the device", methods=("ngram_gpu",), model=False),
    DrafterKind(name="suffix", methods=("suffix",), model=False),
)
"""How vLLM's methods run a drafter. Where its states are is found when it is loaded, see
`driftscope_probes.discovery`; Medusa's heads give their residual streams."""


BLOCKS = ("dflash", "dspark")
"""Methods that always draft in parallel, of which vLLM says so, too."""


def kind_for(speculation: Any) -> DrafterKind:
    """Return how vLLM runs a drafter, by its SpeculativeConfig; raises UnknownDrafterError for a
    method that is not in the list."""
    method = speculation.method
    parallel = method not in BLOCKS and bool(getattr(speculation, "parallel_drafting", False))
    for kind in KINDS:
        if method in kind.methods and kind.parallel == parallel:
            return kind
    raise UnknownDrafterError(
        str(unknown_method(f"{method} with parallel drafting" if parallel else method))
    )


def unknown_method(method: str) -> Unknown:
    """Return that a method of drafting is not known to the probe."""
    return Unknown(
        what=f"a drafter of method {method}",
        instead="its acceptance and timing are recorded, nothing inside it",
        not_recognised=("how vLLM runs it",),
        adding=f"docs/extending/add-a-drafter.md, beside those of {', '.join(methods())}",
    )


def methods() -> tuple[str, ...]:
    """Return all methods in the list, each once."""
    return tuple(dict.fromkeys(method for kind in KINDS for method in kind.methods))


def place_in(config: Any) -> Place:
    """Return this worker's tensor-parallel rank, and its replica unless it is the first.

    `parallel_config.rank` also counts pipeline stages; the ranks of one stage are consecutive. A
    dense model's replicas know nothing of each other but their own index.
    """
    parallel = config.parallel_config
    size = getattr(parallel, "tensor_parallel_size", 1)
    replica = getattr(parallel, "data_parallel_index", 0)
    return Place(rank=getattr(parallel, "rank", 0) % size, replica=replica or None)


def is_last_stage(config: Any) -> bool:
    """Return whether this worker belongs to the last pipeline stage, which drafts."""
    parallel = config.parallel_config
    ranks, stages = (getattr(parallel, f"{kind}_parallel_size", 1) for kind in _WITHIN_REPLICA)
    return bool(getattr(parallel, "rank", 0) // ranks == stages - 1)


_WITHIN_REPLICA = ("tensor", "pipeline")


def run_id_of(config: Any) -> str:
    """Return the run id, shared by one engine's processes."""
    return settings.run_id_of(str(getattr(config, "instance_id", "")).partition("_dp")[0])


def check_speculation(config: Any) -> None:
    """Raise ProbeError if nothing of an engine with this `VllmConfig` can be recorded, and
    UnknownDrafterError if the inside of its drafter cannot be."""
    check_engine(config)
    for name in _SPLIT_CONTEXT:
        if getattr(config.parallel_config, name, 1) > 1:
            raise UnknownDrafterError(
                f"{name} > 1 spreads the keys of a request over ranks, which this driftscope does "
                "not add up; acceptance and timing are recorded"
            )
    kind_for(config.speculative_config)


def check_engine(config: Any) -> None:
    """Raise ProbeError if nothing of the engine can be recorded, whatever drafts."""
    if getattr(config.model_config, "runner_type", "generate") != "generate":
        raise ProbeError(
            "DRIFTSCOPE_TRACE is set, but this model generates no text, so there is nothing to "
            "record: unset DRIFTSCOPE_TRACE"
        )


_SPLIT_CONTEXT = ("prefill_context_parallel_size", "decode_context_parallel_size")
"""Kinds of parallelism that spread the keys of one request over ranks."""


def replicas_of_experts(config: Any) -> int:
    """Return the number of data-parallel replicas that share a mixture of experts: they run their
    forwards together, those without a request as well. Replicas of a dense model know nothing of
    each other, and count as one."""
    return int(getattr(config.parallel_config, "data_parallel_size", 1) or 1)


def unmeasured(layers: dict[str, Any]) -> str | None:
    """Return why the masses of a loaded drafter's attention would be wrong; None if they are not.
    Its states can be measured all the same."""
    if not layers:
        return "no attention layer is found"
    for name, layer in layers.items():
        if reason := _unsupported_attention(layer):
            return f"layer {name} has {reason}, which this driftscope does not measure"
    return None


def _unsupported_attention(layer: Any) -> str | None:
    impl = getattr(layer, "impl", None)
    latent = hasattr(layer, "kv_lora_rank")
    seam = getattr(layer, "forward_impl", None) if latent else getattr(impl, "forward", None)
    if seam is None or "attn_metadata" not in inspect.signature(seam).parameters:
        return f"attention of its own, {type(layer).__name__}"
    if getattr(layer, "attn_type", "decoder") != "decoder":
        return "attention that is not a decoder's"
    if getattr(impl, "is_sparse", False):
        return "sparse attention"
    if getattr(layer, "kv_sharing_target_layer_name", None):
        return "the keys of another layer"
    if getattr(impl, "alibi_slopes", None) is not None:
        return "ALiBi slopes"
    if str(getattr(impl, "kv_cache_dtype", "auto")).startswith("fp8"):
        return "an fp8 KV cache"
    return None
