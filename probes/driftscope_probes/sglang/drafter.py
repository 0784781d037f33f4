"""A drafter that SGLang has loaded: its attention layers, their keys, and the hook that sees their
queries.

Written against sglang.srt.layers.radix_attention, sglang.srt.mem_cache.memory_pool,
sglang.srt.speculative.eagle_worker_v2, sglang.srt.models.llama_eagle3, llama_eagle and mimo_mtp,
0.5.23.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import UnknownDrafterError
from driftscope.vocabulary import Execution
from driftscope_probes.drafter import (
    AttentionKind,
    AttentionLayer,
    KeyReader,
    Kind,
    Observer,
    Switch,
)
from driftscope_probes.start_guard import INTERNALS


class SglangAttentionLayer:
    """One RadixAttention module of a drafter; see `AttentionLayer`."""

    def __init__(self, module: Any, pool: Any) -> None:
        """`pool`: the drafter's KV pool."""
        self._module, self._pool = module, pool
        self.reader: KeyReader = PoolKeys()

    @functools.cached_property
    def kind(self) -> AttentionKind:
        """See AttentionLayer."""
        module = self._module
        return AttentionKind(
            heads=int(module.tp_q_head_num),
            kv_heads=int(module.tp_k_head_num),
            head_size=int(module.qk_head_dim),
            scale=float(module.scaling),
            softcap=float(module.logit_cap or 0.0),
        )

    @property
    def query_size(self) -> int:
        """See AttentionLayer."""
        return self.kind.head_size

    def cache(self) -> torch.Tensor:
        """Return the layer's keys, [slots, kv_heads, 1, head_size]: blocks of one slot each."""
        keys: torch.Tensor = self._pool.get_key_buffer(self._module.layer_id)
        return keys.unsqueeze(2)

    def tap(self, observer: Observer, switch: Switch) -> Callable[[], None]:
        """See AttentionLayer: the queries are those after the rotary embedding."""
        module, original = self._module, self._module.forward

        @functools.wraps(original)
        def observed(q: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(q, *args, **kwargs)
            if switch.should_record:
                switch.observe("attention", observer, q, None)
            return result

        module.forward = observed
        return lambda: delattr(module, "forward")


class PoolKeys:
    """Keys of SGLang's pool: a row for each slot, in every backend with plain attention."""

    paged = True

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return kv_cache.transpose(1, 2)

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        wanted = block_table[:, :length].long().clamp(0, len(kv_cache) - 1)
        keys = kv_cache[:, :, 0][wanted]  # [B, slots, kv_heads, head_size]
        return (queries @ keys.permute(0, 2, 3, 1).float())[:, None]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return queries


TREE = (
    "attention and hidden states are not applicable: with speculative_eagle_topk > 1 the drafts "
    "form a tree, whose depth is not a position"
)
NO_MODEL = (
    "attention and hidden states are not applicable: an n-gram lookup drafts, and no model; K is "
    "the number of nodes of the tree that is verified, without its root"
)
EAGLE3 = Kind(
    name="EAGLE-3 / 3.1",
    methods=("EAGLE3",),
    drafters=("LlamaForCausalLMEagle3",),
    outputs={"postnorm_rms": 0, "fed_rms": -1},
    norms=("model.norm",),
)
EAGLE1 = Kind(
    name="EAGLE-1",
    methods=("EAGLE",),
    drafters=("LlamaForCausalLMEagle",),
    outputs={"prenorm_rms": -1, "fed_rms": -1},
)
MIMO_MTP = Kind(
    name="MTP, MiMo",
    methods=("EAGLE", "NEXTN"),
    drafters=("MiMoMTP",),
    outputs={"postnorm_rms": 0, "fed_rms": -1},
    norms=("model.final_layernorm",),
)
KINDS = (EAGLE3, EAGLE1, MIMO_MTP)
"""The kinds of drafter whose inside is recorded; of others, acceptance and timing are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SglangDrafter:
    """The properties of a drafter that SGLang has loaded; see `Drafter`."""

    worker: Any
    """SGLang's EagleDraftWorker."""
    attention: dict[str, Any]
    """SGLang's RadixAttention modules by name, in order of depth in the network."""
    kind: Kind = EAGLE3
    layers: dict[str, AttentionLayer] = field(init=False)
    """The modules of `attention`, wrapped for taps and meters."""

    def __post_init__(self) -> None:
        """Wrap the attention modules."""
        pool = self.worker.draft_runner.token_to_kv_pool
        wrapped = {
            name: SglangAttentionLayer(layer, pool) for name, layer in self.attention.items()
        }
        object.__setattr__(self, "layers", wrapped)

    @property
    def model(self) -> Any:
        """SGLang's drafter module, such as LlamaForCausalLMEagle3."""
        return self.worker.draft_runner.model

    @property
    def device(self) -> torch.device:
        """See Drafter."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """See Drafter."""
        dtype: torch.dtype = self.worker.draft_runner.dtype
        return dtype

    @property
    def k(self) -> int:
        """See Drafter: SGLang's speculative_num_steps."""
        return int(self.worker.speculative_num_steps)

    @property
    def compiled(self) -> bool:
        """See Drafter: recorded rounds are eager."""
        return False

    @property
    def samples(self) -> bool:
        """See Drafter."""
        return True

    @property
    def max_requests(self) -> int:
        """See Drafter."""
        return int(self.worker.req_to_token_pool.size)

    @property
    def max_slots(self) -> int:
        """See Drafter."""
        return int(self.worker.draft_runner.model_config.context_len)

    @property
    def queries(self) -> int:
        """See Drafter."""
        return 1

    @property
    def shares_cache(self) -> bool:
        """See Drafter: the drafter has a pool of its own."""
        return False

    @property
    def final_norms(self) -> tuple[Any, ...]:
        """See Drafter."""
        return tuple(self.model.get_submodule(path) for path in self.kind.norms)

    @property
    def aux_states(self) -> int:
        """See Drafter: others than EAGLE-3 read the target's last state, and capture no layer."""
        return int(self.model.model.num_aux_hidden_states) if self.kind is EAGLE3 else 0

    @property
    def aux_norms(self) -> tuple[Any, ...]:
        """See Drafter: `fc_norm`, or else the norm of norm_before_fc."""
        inner = self.model.model
        if self.kind is not EAGLE3:
            return ()
        if inner.fc_norm is not None:
            return tuple(inner.fc_norm)
        return () if inner.input_norm is None else (inner.input_norm,)

    def forward_mode(self) -> str:
        """See Drafter."""
        return Execution.EAGER

    def offer_lse(self) -> bool:
        """See Drafter: SGLang's backends keep it to themselves."""
        return False


def open_drafter(worker: Any) -> SglangDrafter:
    """Return the drafter of an EagleDraftWorker; raises UnknownDrafterError if its inside cannot be
    recorded."""
    from sglang.srt.layers.radix_attention import RadixAttention

    runner = worker.draft_runner
    if runner is None:
        raise UnknownDrafterError(NO_MODEL)
    if worker.topk > 1:
        raise UnknownDrafterError(TREE)
    name = type(runner.model).__name__
    kind = next((kind for kind in KINDS if name in kind.drafters), None)
    if kind is None:
        supported = ", ".join(drafter for other in KINDS for drafter in other.drafters)
        raise UnknownDrafterError(
            f"{INTERNALS}: drafter {name} is not supported by this driftscope in SGLang; "
            f"supported: {supported}"
        )
    attention = {
        path: module
        for path, module in runner.model.named_modules()
        if isinstance(module, RadixAttention)
    }
    if reason := _unsupported(runner, attention):
        raise UnknownDrafterError(
            f"{INTERNALS}: drafter {name}: {reason} not supported by this driftscope"
        )
    return SglangDrafter(worker=worker, attention=attention, kind=kind)


def _unsupported(runner: Any, attention: dict[str, Any]) -> str | None:
    """Return what would be measured incorrectly, with its verb; None if nothing would be."""
    if not attention:
        return "a model without attention layers is"
    if runner.kv_index_translator.is_translating:
        return "virtual slots of the KV cache are"
    if "float8" in str(runner.kv_cache_dtype):
        return "an fp8 KV cache is"
    for module in attention.values():
        if module.sliding_window_size > 0:
            return "a sliding window is"
        if module.qk_head_dim != module.v_head_dim or module.is_cross_attention:
            return "latent or cross attention is"
    return None
