"""A drafter that vLLM has loaded, and checks of it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope_probes.drafter import AttentionLayer, Kind
from driftscope_probes.vllm.configuration import checks
from driftscope_probes.vllm.configuration.drafter_kinds import EAGLE3, kind_for
from driftscope_probes.vllm.layers.attention_layer import VllmAttentionLayer, backend_of, offer_lse
from driftscope_probes.vllm.layers.forward_mode import forward_mode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VllmDrafter:
    """The properties of a drafter that vLLM has loaded; see `Drafter`."""

    model: Any
    """vLLM's drafter module, such as Eagle3LlamaForCausalLM."""
    attention: dict[str, Any]
    """vLLM's attention modules by name, in order of depth in the network."""
    config: Any
    """The engine's VllmConfig."""
    device: torch.device
    kind: Kind = EAGLE3
    layers: dict[str, AttentionLayer] = field(init=False)
    """The modules of `attention`, wrapped for taps and meters."""

    def __post_init__(self) -> None:
        """Wrap the attention modules."""
        wrapped = {name: VllmAttentionLayer(each) for name, each in self.attention.items()}
        object.__setattr__(self, "layers", wrapped)

    @property
    def backend(self) -> str:
        """vLLM's name of the attention backend, such as CPU_ATTN; empty without attention."""
        return next((backend_of(layer) for layer in self.attention.values()), "")

    def offer_lse(self) -> bool:
        """See Drafter: FlashAttention computes the log-sum-exp anyway."""
        return self.backend == "FLASH_ATTN" and offer_lse()

    def forward_mode(self) -> str:
        """See Drafter."""
        return forward_mode(self.compiled)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of activations; a parameter may have another, such as a table of token ids."""
        dtype: torch.dtype = self.config.speculative_config.draft_model_config.dtype
        return dtype

    @property
    def k(self) -> int:
        """Largest chain length."""
        return int(self.config.speculative_config.num_speculative_tokens)

    @property
    def compiled(self) -> bool:
        """Whether vLLM compiles models."""
        mode = getattr(self.config.compilation_config, "mode", 0) or 0
        return not self.config.model_config.enforce_eager and int(mode) > 0

    @property
    def samples(self) -> bool:
        """Whether vLLM may change received logits in place, to sample or to mask tokens."""
        speculation = self.config.speculative_config
        greedy = getattr(speculation, "draft_sample_method", None) == "greedy"
        return not greedy or bool(getattr(speculation, "use_heterogeneous_vocab", False))

    @property
    def max_requests(self) -> int:
        """Largest number of requests in a step."""
        return int(self.config.scheduler_config.max_num_seqs)

    @property
    def max_slots(self) -> int:
        """Number of slots in the longest context; drafts beyond it do not count."""
        return int(self.config.model_config.max_model_len)

    @property
    def queries(self) -> int:
        """Number of queries measured per request and forward: 1, or K for a block drafter."""
        return self.k if self.kind.block else 1

    @property
    def shares_cache(self) -> bool:
        """Whether other layers may write to the memory of the drafter's keys, in blocks that have
        been freed: vLLM lets layers of different kinds share memory."""
        layers = self.config.compilation_config.static_forward_context
        own = [_extent(layer) for layer in self.attention.values()]
        others = [_extent(layer) for name, layer in layers.items() if name not in self.attention]
        return any(
            low < other_high and other_low < high
            for low, high in own
            for other_low, other_high in others
        )

    @property
    def final_norms(self) -> tuple[Any, ...]:
        """Modules whose input is the pre-norm residual stream; one per head, if any."""
        paths = self.kind.norms
        return tuple(
            module
            for name, module in self.model.named_modules()
            if any(fnmatch.fnmatchcase(name, path) for path in paths)
        )

    @property
    def aux_states(self) -> int:
        """Number of captured target layers that are combined for the drafter.

        It is 0 for a block drafter, whose captured states have the target's rows and not those of
        its queries.
        """
        inner: Any = getattr(self.model, "model", None)
        if self.kind.block or not getattr(inner, "use_aux_hidden_state", False):
            return 0
        # vLLM's Qwen3-style drafter uses another name for it.
        count = getattr(inner, "num_aux_hidden_states", None)
        return int(inner.num_aux_layers if count is None else count)

    @property
    def aux_norms(self) -> tuple[Any, ...]:
        """Norms whose output is the input of fc: `fc_norm`, or else the norm of norm_before_fc."""
        if not self.aux_states:
            return ()
        inner = self.model.model
        if per_layer := getattr(inner, "fc_norm", None):
            return tuple(per_layer)
        over_all = getattr(inner, "input_norm", None)
        return () if over_all is None else (over_all,)


def open_drafter(model: Any, layer_names: Iterable[str], config: Any) -> VllmDrafter:
    """Return the drafter after checking it; raises ProbeError if it cannot be recorded."""
    context = config.compilation_config.static_forward_context
    names = sorted(layer_names, key=_numbers_apart)
    # Several MTP modules may be loaded; the runners that get here run only the first.
    modules = int(getattr(getattr(model, "model", None), "num_mtp_layers", 1))
    attention = {name: context[name] for name in names[: len(names) // modules]}
    checks.check_speculation(config)
    kind = kind_for(config.speculative_config, type(model).__name__)
    checks.check_drafter(model, attention, kind)
    device = next(model.parameters()).device
    return VllmDrafter(model=model, attention=attention, config=config, device=device, kind=kind)


def _extent(layer: Any) -> tuple[int, int]:
    """Return the address range of a layer's KV cache; empty if the layer has no cache."""
    cache = getattr(layer, "kv_cache", None)
    cache = cache[0] if isinstance(cache, list | tuple) and cache else cache
    if not isinstance(cache, torch.Tensor):
        return 0, 0
    spans = ((n - 1) * stride for n, stride in zip(cache.shape, cache.stride(), strict=True))
    size = (sum(spans) + 1) * cache.element_size() if cache.numel() else 0
    return cache.data_ptr(), cache.data_ptr() + size


def _numbers_apart(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layers.9 before layers.10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
