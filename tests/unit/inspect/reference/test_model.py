import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from driftscope.inspect.reference.config import DrafterConfig, default_aux_layers
from driftscope.inspect.reference.drafter import (
    Drafter,
    Target,
    load_drafter,
    load_target,
    save_drafter,
    save_target,
)
from driftscope.inspect.reference.layers import KVCache, RMSNorm

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
