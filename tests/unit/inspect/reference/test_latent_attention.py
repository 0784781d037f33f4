"""Latent attention is that of transformers, with plain and with scaled positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from driftscope.inspect.reference.config import (
    LATENT_DRAFTER,
    DecoderConfig,
    DrafterConfig,
    LatentConfig,
)
from driftscope.inspect.reference.layers import LatentAttention, Rotary, causal_attention

SIZES = {
    "q_lora_rank": 12,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
LAYER = DecoderConfig(
    hidden_size=32, num_attention_heads=3, head_dim=4, rms_norm_eps=1e-6, rope_theta=1e4
)
"""The epsilon is the one that transformers gives to the norms of the ranks."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.8,
    "mscale_all_dim": 1.2,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def _theirs(rope: dict[str, Any]) -> tuple[Any, Any]:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Attention,
        DeepseekV3RotaryEmbedding,
    )

    config = DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=64,
        rope_parameters=dict(rope),
        attn_implementation="eager",
        **SIZES,
    )
    torch.manual_seed(1)
    return DeepseekV3Attention(config, 0).eval(), DeepseekV3RotaryEmbedding(config)


def _ours(theirs: Any, rotary: Any, rope: dict[str, Any], x: Tensor) -> Tensor:
    latent = LatentConfig.from_hf({**SIZES, "rope_parameters": rope})
    layer = LatentAttention(LAYER, latent, 32)
    layer.load_state_dict(theirs.state_dict())
    turn = Rotary(LAYER, rotary.inv_freq, float(rotary.attention_scaling))
    positions = torch.arange(x.shape[1])
    keys, values = layer.keys_values(x, turn, positions)
    return layer.output(
        causal_attention(layer.queries(x, turn, positions), keys, values, positions)
    )


@pytest.mark.parametrize("rope", [PLAIN, YARN], ids=["plain", "yarn"])
@torch.no_grad()
def test_attention_is_that_of_transformers(rope: dict[str, Any]) -> None:
    theirs, rotary = _theirs(rope)
    x = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(2))
    turns = rotary(x, torch.arange(40)[None])
    hidden = torch.full((40, 40), float("-inf")).triu(1)[None, None]
    expected = theirs(x, turns, hidden)[0]
    torch.testing.assert_close(_ours(theirs, rotary, rope, x), expected, atol=2e-6, rtol=1e-4)


def test_scaled_positions_change_the_temperature() -> None:
    plain, scaled = (LatentConfig.from_hf({**SIZES, "rope_scaling": r}) for r in (PLAIN, YARN))
    assert plain.scale == 1.0
    assert scaled.scale == pytest.approx((0.1 * 1.2 * 1.3862943611 + 1) ** 2)


def test_a_config_is_read_as_it_is_written() -> None:
    latent = LatentConfig.from_hf(SIZES)
    config = DrafterConfig(layer=LAYER, aux_layers=(1, 2), latent=latent)
    fields = config.to_hf()
    assert fields["architectures"] == [LATENT_DRAFTER]
    assert DrafterConfig.from_hf(fields) == config


def test_a_llama_drafter_has_no_latent_attention() -> None:
    config = DrafterConfig(layer=LAYER, aux_layers=(1, 2))
    assert DrafterConfig.from_hf({**config.to_hf(), **SIZES}).latent is None


def test_a_missing_size_is_a_key_error() -> None:
    config = replace(DrafterConfig(layer=LAYER), latent=LatentConfig.from_hf(SIZES))
    fields = config.to_hf()
    del fields["v_head_dim"]
    with pytest.raises(KeyError, match="v_head_dim"):
        DrafterConfig.from_hf(fields)
