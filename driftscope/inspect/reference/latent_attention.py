"""Multi-head latent attention, with keys and values expanded from the latent of each slot.

Shapes: B batch, S slots, N heads, D = qk_nope_head_dim + qk_rope_head_dim, V = v_head_dim. Engines
keep the latents and fold `kv_b_proj` into the queries, which gives the same attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from driftscope.inspect.reference.config import DecoderConfig
from driftscope.inspect.reference.latent_config import LatentConfig
from driftscope.inspect.reference.layers import RMSNorm, Rotary


class LatentAttention(nn.Module):
    """The projections of latent attention, in place of those of `layers.Attention`."""

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
