"""Layers that the target and the drafter share: RMSNorm, rotary positions, attention, MLP.

Shapes: B batch, S or A slots, H hidden, N query heads, G key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from driftscope.inspect.reference.config import FINAL_STATE, DecoderConfig, LatentConfig


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norms and softmaxes: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last axis; keeps float64 in float64."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., size]; return the same shape in the dtype of the weight."""
        wide = x.to(at_least_float32(x.dtype))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight).to(self.weight.dtype)


class Rotary:
    """Rotary position embedding, halves rotated (the Llama layout of Hugging Face and vLLM).

    The tables are float64 and not part of a module, so that casting a model leaves them exact; they
    move to the device on which they are first used.
    """

    def __init__(
        self, config: DecoderConfig, frequencies: Tensor | None = None, scale: float = 1.0
    ) -> None:
        """`frequencies` [D / 2] and `scale` replace those of plain positions, for models that scale
        theirs."""
        turned = int(config.head_dim * config.partial_rotary_factor)
        exponent = torch.arange(0, turned, 2, dtype=torch.float64) / turned
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        turns = config.rope_theta**-exponent if frequencies is None else frequencies.double()
        angles = torch.outer(positions, turns).repeat(1, 2)
        self.cos, self.sin = angles.cos() * scale, angles.sin() * scale

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `x` [B, heads, S, D] by `positions` [S]; of each head, as many numbers as the
        table has."""
        turned = self.cos.shape[-1]
        if turned < x.shape[-1]:
            return torch.cat([self(x[..., :turned], positions), x[..., turned:]], -1)
        if self.cos.device != x.device:
            self.cos, self.sin = self.cos.to(x.device), self.sin.to(x.device)
        wide = at_least_float32(x.dtype)
        cos, sin = self.cos[positions].to(wide), self.sin[positions].to(wide)
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class GroupedQueryAttention(nn.Module):
    """The projections of grouped-query attention. `input_size` is 2H in a drafter's first layer.

    `qk_norm` adds an RMSNorm on each head's queries and keys, as in Qwen3; `bias` adds one to
    queries, keys and values, as in Qwen2, and `output_bias` one to the output.
    """

    def __init__(
        self,
        config: DecoderConfig,
        input_size: int,
        *,
        qk_norm: bool = False,
        bias: bool = False,
        output_bias: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=bias)
        self.k_proj = nn.Linear(input_size, key_size, bias=bias)
        self.v_proj = nn.Linear(input_size, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=output_bias)
        head = (config.head_dim, config.rms_norm_eps)
        self.q_norm: nn.Module = RMSNorm(*head) if qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(*head) if qk_norm else nn.Identity()

    def queries(self, x: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
        """Project [B, S, input] to queries [B, N, S, D], rotated, not scaled."""
        return rotary(self.q_norm(self._heads(self.q_proj(x))), positions)

    def keys_values(self, x: Tensor, rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, input] to keys and values [B, N, S, D], with key heads repeated."""
        keys = rotary(self.k_norm(self._heads(self.k_proj(x))), positions)
        repeats = self.config.num_attention_heads // self.config.num_key_value_heads
        values = self._heads(self.v_proj(x))
        return keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)

    def output(self, heads: Tensor) -> Tensor:
        """Project the heads [B, N, S, D] to [B, S, H]."""
        mixed: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return mixed

    def _heads(self, flat: Tensor) -> Tensor:
        batch, slots, _ = flat.shape
        return flat.view(batch, slots, -1, self.config.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig, *, bias: bool = False) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to [..., H]; return [..., H]."""
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class LatentAttention(nn.Module):
    """The projections of latent attention, in place of `GroupedQueryAttention`'s."""

    def __init__(self, config: DecoderConfig, latent: LatentConfig, input_size: int) -> None:
        super().__init__()
        self.latent, eps = latent, config.rms_norm_eps
        self._head = [latent.qk_nope_head_dim, latent.qk_rope_head_dim]
        self._cached = [latent.kv_lora_rank, latent.qk_rope_head_dim]
        self._expanded = [latent.qk_nope_head_dim, latent.v_head_dim]
        heads, rank = config.num_attention_heads, latent.q_lora_rank
        self.q_a_proj = nn.Linear(input_size, rank, bias=False)
        self.q_a_layernorm = RMSNorm(rank, eps)
        self.q_b_proj = nn.Linear(rank, heads * sum(self._head), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(input_size, sum(self._cached), bias=False)
        self.kv_a_layernorm = RMSNorm(latent.kv_lora_rank, eps)
        self.kv_b_proj = nn.Linear(latent.kv_lora_rank, heads * sum(self._expanded), bias=False)
        self.o_proj = nn.Linear(heads * latent.v_head_dim, config.hidden_size, bias=False)

    def queries(self, x: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
        """Project [B, S, input] to queries [B, N, S, D], rotated and with the factor of scaled
        positions, but not divided by sqrt(D)."""
        flat = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        plain, turned = torch.split(_heads(flat, sum(self._head)), self._head, -1)
        rotated = rotary(_halves(turned), positions)
        return torch.cat([plain, rotated], -1) * self.latent.scale

    def keys_values(self, x: Tensor, rotary: Rotary, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Project [B, S, input] to keys [B, N, S, D] and values [B, N, S, V]. All heads share the
        rotated part of a key."""
        latent, turned = torch.split(self.kv_a_proj_with_mqa(x), self._cached, -1)
        expanded = _heads(self.kv_b_proj(self.kv_a_layernorm(latent)), sum(self._expanded))
        plain, values = torch.split(expanded, self._expanded, -1)
        rotated = rotary(_halves(turned[:, None]), positions)
        shared = rotated.expand(*plain.shape[:-1], rotated.shape[-1])
        return torch.cat([plain, shared], -1), values

    def output(self, heads: Tensor) -> Tensor:
        """Project the heads [B, N, S, V] to [B, S, H]."""
        mixed: Tensor = self.o_proj(heads.transpose(1, 2).flatten(2))
        return mixed


def _heads(flat: Tensor, size: int) -> Tensor:
    return flat.view(*flat.shape[:2], -1, size).transpose(1, 2)


def _halves(pairs: Tensor) -> Tensor:
    """Order the last axis as `Rotary` needs it: first all even places, then all odd ones. DeepSeek
    rotates neighbours; the same order in queries and keys leaves their products as they are."""
    return torch.cat([pairs[..., ::2], pairs[..., 1::2]], -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """Output of the target: `hidden` [B, S, H] after the final norm, and `aux` [B, S, H] per
    captured layer, not normed."""

    hidden: Tensor
    aux: tuple[Tensor, ...]


class TargetLayer(nn.Module):
    """Pre-norm decoder layer: residual + attention, residual + MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = GroupedQueryAttention(config, config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
        """Run the layer on [B, S, H] at `positions` [S]."""
        normed = self.input_layernorm(x)
        queries = self.self_attn.queries(normed, rotary, positions)
        keys, values = self.self_attn.keys_values(normed, rotary, positions)
        x = x + self.self_attn.output(causal_attention(queries, keys, values))
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

    def forward(self, ids: Tensor, *, aux_layers: Sequence[int] = ()) -> TargetOutput:
        """Run `ids` [B, S]. Layers count from 1; 0 is the embedding, and FINAL_STATE the state
        after the final norm."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        outputs = [self.embed(ids)]
        for layer in self.model.layers:
            outputs.append(layer(outputs[-1], self.rotary, positions))
        final: Tensor = self.model.norm(outputs[-1])
        aux = tuple(final if layer == FINAL_STATE else outputs[layer] for layer in aux_layers)
        return TargetOutput(hidden=final, aux=aux)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., vocabulary] for [..., H] after the final norm."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return softmax attention [B, N, S, D] of S queries and keys; query i sees the keys 0..i."""
    queries, keys = queries.to(values.dtype), keys.to(values.dtype)
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
