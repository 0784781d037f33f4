"""The reference target: a Llama with tied embeddings, whose layer outputs can be captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from driftscope.inspect.reference.config import FINAL_STATE, DecoderConfig
from driftscope.inspect.reference.layers import MLP, Attention, RMSNorm, Rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """Output of the target: `hidden` [B, S, H] after the final norm, and `aux` [B, S, H] per
    captured layer, not normed."""

    hidden: Tensor
    aux: tuple[Tensor, ...]


class KVCache:
    """Keys and values of one batch of sequences, allocated once; can be truncated again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._store: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, N, S, D] after the first `length` positions; return all up to the end."""
        if layer not in self._store:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self._store[layer] = (keys.new_zeros(shape), values.new_zeros(shape))
        end = self.length + keys.shape[2]
        for store, new in zip(self._store[layer], (keys, values), strict=True):
            store[:, :, self.length : end] = new
        all_keys, all_values = self._store[layer]
        return all_keys[:, :, :end], all_values[:, :, :end]

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` positions."""
        self.length = min(self.length, length)


class TargetLayer(nn.Module):
    """Pre-norm decoder layer: residual + attention, residual + MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, rotary: Rotary, positions: Tensor, cache: KVCache | None, index: int
    ) -> Tensor:
        """Run the layer on [B, S, H] at `positions` [S]; `index` is its key in the cache."""
        normed = self.input_layernorm(x)
        queries = self.self_attn.queries(normed, rotary, positions)
        keys, values = self.self_attn.keys_values(normed, rotary, positions)
        if cache is not None:
            keys, values = cache.extend(index, keys, values)
        x = x + self.self_attn.output(causal_attention(queries, keys, values, positions))
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class TargetBody(nn.Module):
    """The parameters under the prefix `model.`"""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Embeds(Protocol):
    """A target as a drafter needs it: by its embedding."""

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]."""
        ...


class Target(nn.Module):
    """LlamaForCausalLM with tied embeddings."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TargetBody(config)
        self.rotary = Rotary(config)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]. The drafter shares this embedding."""
        embedded: Tensor = self.model.embed_tokens(ids)
        return embedded

    def forward(
        self, ids: Tensor, *, aux_layers: Sequence[int] = (), cache: KVCache | None = None
    ) -> TargetOutput:
        """Run `ids` [B, S] after the cached tokens. Layers count from 1; 0 is the embedding, and
        FINAL_STATE the state after the final norm."""
        start = cache.length if cache is not None else 0
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        outputs = [self.embed(ids)]
        for index, layer in enumerate(self.model.layers):
            outputs.append(layer(outputs[-1], self.rotary, positions, cache, index))
        if cache is not None:
            cache.length = start + ids.shape[1]
        final: Tensor = self.model.norm(outputs[-1])
        aux = tuple(final if layer == FINAL_STATE else outputs[layer] for layer in aux_layers)
        return TargetOutput(hidden=final, aux=aux)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., vocabulary] for [..., H] after the final norm."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Return softmax attention [B, N, S, D]; the query at position i sees the keys 0..i."""
    queries = queries.to(values.dtype)
    keys = keys.to(values.dtype)
    attend = functional.scaled_dot_product_attention
    if queries.shape[2] == 1:
        return attend(queries, keys, values)
    if queries.shape[2] == keys.shape[2]:
        return attend(queries, keys, values, is_causal=True)
    mask = torch.arange(keys.shape[2], device=keys.device) <= positions[:, None]
    return attend(queries, keys, values, attn_mask=mask)
