"""Latent attention is that of transformers, with plain and with scaled positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from driftscope.inspect.reference.config import (
    LATENT_DRAFTER,
    DecoderConfig,
    DrafterConfig,
    LatentConfig,
    default_aux_layers,
)
from driftscope.inspect.reference.drafter import (
    Drafter,
    Target,
    load_drafter,
    load_target,
    save_drafter,
    save_target,
)
from driftscope.inspect.reference.layers import (
    KVCache,
    LatentAttention,
    RMSNorm,
    Rotary,
    causal_attention,
)

Pair = tuple[Target, Drafter]


def test_rms_norm_keeps_float64() -> None:
    norm = RMSNorm(4, 1e-5).double()
    x = torch.tensor([1.0, 2.0, 3.0, 4.0 + 1e-12], dtype=torch.float64)
    expected = x / (x.square().mean() + 1e-5).sqrt()
    assert norm(x).dtype is torch.float64
    assert torch.allclose(norm(x), expected, rtol=0, atol=1e-15)


def test_casting_a_model_leaves_its_positions_exact(pair: Pair) -> None:
    cos = pair[1].rotary.cos.clone()
    assert pair[1].to(torch.bfloat16).rotary.cos.equal(cos)


def test_a_cache_changes_nothing(pair: Pair, tokens: list[int]) -> None:
    target, ids = pair[0], torch.tensor([tokens])
    with torch.no_grad():
        whole = target(ids, aux_layers=(0, 2))
        cache = KVCache(len(tokens))
        target(ids[:, :10], cache=cache)
        target(ids[:, 20:25], cache=cache)
        cache.truncate(10)
        rest = torch.split(ids[:, 10:], 7, 1)
        parts = [target(part, aux_layers=(0, 2), cache=cache) for part in rest]
    hidden = torch.cat([part.hidden for part in parts], 1)
    assert torch.allclose(hidden, whole.hidden[:, 10:], atol=1e-12)
    aux = torch.cat([part.aux[1] for part in parts], 1)
    assert torch.allclose(aux, whole.aux[1][:, 10:], atol=1e-12)


def test_saved_models_load_as_they_were(pair: Pair, tmp_path: Path) -> None:
    target, drafter = pair
    save_target(target, tmp_path / "target", torch.float64)
    save_drafter(drafter, tmp_path / "drafter", torch.float64)
    loaded = load_target(tmp_path / "target", torch.float64)
    assert loaded.config == target.config
    for name, values in loaded.state_dict().items():
        assert values.equal(target.state_dict()[name])
    again = load_drafter(tmp_path / "drafter", torch.float64)
    assert again.config == drafter.config
    for name, values in again.state_dict().items():
        assert values.equal(drafter.state_dict()[name])


def test_configs_say_what_vllm_reads(pair: Pair, tmp_path: Path) -> None:
    save_target(pair[0], tmp_path / "target")
    save_drafter(pair[1], tmp_path / "drafter")
    target, drafter = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("target", "drafter")
    )
    assert target["architectures"] == ["LlamaForCausalLM"]
    assert target["tie_word_embeddings"] is True
    assert drafter["architectures"] == ["LlamaForCausalLMEagle3"]
    assert drafter["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    assert drafter["draft_vocab_size"] == target["vocab_size"]
    assert drafter["torch_dtype"] == target["torch_dtype"] == "bfloat16"


def test_absent_norm_flags_mean_eagle3(pair: Pair) -> None:
    fields = pair[1].config.to_hf()
    del fields["fc_norm"], fields["norm_output"]
    config = DrafterConfig.from_hf(fields)
    assert not config.fc_norm
    assert not config.norm_output


def test_a_config_may_name_auxiliary_layers_at_its_top_alone(pair: Pair) -> None:
    fields = pair[1].config.to_hf()
    del fields["eagle_config"]
    assert DrafterConfig.from_hf(fields).aux_layers == (1, 2)


def test_a_config_without_auxiliary_layers_means_vllms_default(pair: Pair) -> None:
    unnamed = replace(pair[1].config, aux_layers=(2, 4, 5), names_aux_layers=False)
    fields = unnamed.to_hf()
    assert "layer_ids" not in json.dumps(fields)
    with pytest.raises(KeyError):
        DrafterConfig.from_hf(fields)
    assert DrafterConfig.from_hf(fields, target_layers=8) == unnamed
    with pytest.raises(ValueError, match="target of 6 are not three"):
        DrafterConfig.from_hf(fields, target_layers=6)


@pytest.mark.parametrize("layers", [7, 8, 32, 61])
@pytest.mark.slow
def test_default_layers_are_the_installed_vllms(layers: int) -> None:
    interfaces = pytest.importorskip("vllm.model_executor.models.interfaces")
    target = SimpleNamespace(model=SimpleNamespace(layers=range(layers)))
    theirs = interfaces.SupportsEagle3.get_eagle3_default_aux_hidden_state_layers(target)
    assert default_aux_layers(layers) == theirs


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
