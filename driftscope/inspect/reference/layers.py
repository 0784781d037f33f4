"""Layers that the target and the drafter share: RMSNorm, rotary positions, attention, MLP.

Shapes: B batch, S or A slots, H hidden, N query heads, G key heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from driftscope.inspect.reference.config import DecoderConfig


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
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        turns = config.rope_theta**-exponent if frequencies is None else frequencies.double()
        angles = torch.outer(positions, turns).repeat(1, 2)
        self.cos, self.sin = angles.cos() * scale, angles.sin() * scale

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `x` [B, heads, S, D] by `positions` [S]."""
        if self.cos.device != x.device:
            self.cos, self.sin = self.cos.to(x.device), self.sin.to(x.device)
        wide = at_least_float32(x.dtype)
        cos, sin = self.cos[positions].to(wide), self.sin[positions].to(wide)
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """The projections of grouped-query attention. `input_size` is 2H in a drafter's first layer.

    `qk_norm` adds an RMSNorm on each head's queries and keys, as in Qwen3; `bias` adds one to
    queries, keys and values, as in Qwen2.
    """

    def __init__(
        self,
        config: DecoderConfig,
        input_size: int,
        *,
        qk_norm: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(input_size, query_size, bias=bias)
        self.k_proj = nn.Linear(input_size, key_size, bias=bias)
        self.v_proj = nn.Linear(input_size, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
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

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to [..., H]; return [..., H]."""
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down
