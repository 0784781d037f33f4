"""MTP heads inside a target's checkpoint, in layouts that real vLLM loads in other tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from verification.zoo.mtp import DEEPSEEK, ERNIE, MIMO, MIMO_V2

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import find_heads, open_drafter
from driftscope.inspect.checks.result import CheckResult, Inspected, Level
from driftscope.inspect.inspection import FOR_ANY_DRAFTER, FOR_MTP, checks_made, run_checks
from driftscope.inspect.trial.drafting import as_served

KINDS = {kind.name: kind for kind in (DEEPSEEK, MIMO, MIMO_V2, ERNIE)}
FAMILY = {
    "deepseek_mtp": "DeepSeek, GLM",
    "mimo_mtp": "MiMo",
    "mimo_v2_mtp": "MiMo-V2",
    "ernie_mtp": "ERNIE 4.5",
}
State = dict[str, torch.Tensor]
Fields = dict[str, Any]


@pytest.fixture(params=KINDS)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    KINDS[request.param].build(tmp_path / "model")
    return request.param, tmp_path / "model"


def _changed(
    path: Path,
    weights: Callable[[State], State] = dict,
    config: Callable[[Fields], Fields] = dict,
) -> Path:
    file = path / "model.safetensors"
    save_file(weights(load_file(file)), file)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config(fields)))
    return path


def _found(path: Path) -> dict[str, CheckResult]:
    results = run_checks(Inspected(drafter=open_drafter(str(path))))
    return {each.id: each for each in results if each.level is not Level.NOTE}


def test_heads_that_vllm_loads_have_no_fault(built: tuple[str, Path]) -> None:
    name, path = built
    drafter = open_drafter(str(path))
    heads = find_heads(drafter.raw, drafter.tensors)
    assert heads is not None and heads.layout.family == FAMILY[name]
    assert _found(path) == {}
    assert checks_made(Inspected(drafter=drafter)) == len(FOR_MTP) + len(FOR_ANY_DRAFTER)


def test_only_the_heads_tensors_are_opened(built: tuple[str, Path]) -> None:
    _, path = built
    whole = load_file(path / "model.safetensors")
    opened = open_drafter(str(path)).tensors
    assert 0 < len(opened) < len(whole)
    assert "model.layers.0.self_attn.o_proj.weight" in whole.keys() - opened.keys()


def test_lost_heads_are_an_error(built: tuple[str, Path]) -> None:
    _, path = built
    heads = open_drafter(str(path)).tensors
    _changed(path, lambda state: {name: each for name, each in state.items() if name not in heads})
    found = _found(path)
    assert found.keys() == {"mtp_heads_missing"}
    assert found["mtp_heads_missing"].there == "0"
    assert "vllm#35548" in found["mtp_heads_missing"].rule


def test_a_head_without_its_projection_lacks_a_tensor(built: tuple[str, Path]) -> None:
    _, path = built
    drafter = open_drafter(str(path))
    heads = find_heads(drafter.raw, drafter.tensors)
    assert heads is not None
    lost = heads.of(0)[heads.layout.projection]
    _changed(path, lambda state: {name: each for name, each in state.items() if name != lost})
    assert heads.layout.projection in _found(path)["missing_tensor"].there


def test_a_projection_of_another_width_is_named(built: tuple[str, Path]) -> None:
    _, path = built
    drafter = open_drafter(str(path))
    heads = find_heads(drafter.raw, drafter.tensors)
    assert heads is not None
    name = heads.of(0)[heads.layout.projection]
    _changed(path, lambda state: {**state, name: state[name][:, :-1].contiguous()})
    assert _found(path).keys() == {"wrong_shape"}


def test_a_quantised_target_with_plain_heads_is_a_warning(built: tuple[str, Path]) -> None:
    _, path = built
    _changed(path, config=lambda fields: {**fields, "quantization_config": {"quant_method": "fp8"}})
    found = _found(path)["mtp_heads_not_quantized"]
    assert found.level is Level.WARNING and "sglang#35797" in found.rule


def test_numbers_of_heads_are_checked(built: tuple[str, Path]) -> None:
    _, path = built
    name = next(iter(open_drafter(str(path)).tensors))
    _changed(path, lambda state: {**state, name: torch.full_like(state[name], float("nan"))})
    assert "not_finite" in _found(path)


def test_heads_of_qwen_share_norms_and_projection(tmp_path: Path) -> None:
    hidden = 8
    state = {
        "mtp.fc.weight": torch.ones(hidden, 2 * hidden),
        **{f"mtp.{norm}.weight": torch.ones(hidden) for norm in ("norm", "pre_fc_norm_embedding")},
        "mtp.layers.0.self_attn.q_proj.weight": torch.ones(hidden, hidden),
        "model.language_model.layers.0.self_attn.q_proj.weight": torch.ones(hidden, hidden),
    }
    save_file(state, tmp_path / "model.safetensors")
    text = {"num_hidden_layers": 1, "hidden_size": hidden, "mtp_num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text})
    )
    assert len(open_drafter(str(tmp_path)).tensors) == 4
    assert _found(tmp_path)["missing_tensor"].there == "pre_fc_norm_hidden.weight of head 0"


def test_only_heads_of_mimo_are_run(built: tuple[str, Path]) -> None:
    name, path = built
    if name == MIMO.name:
        as_served(open_drafter(str(path)), 2).check()
        return
    with pytest.raises(CheckpointError, match=f"MTP heads in the layout of {FAMILY[name]}"):
        as_served(open_drafter(str(path)), 2)


def test_a_missing_shard_without_heads_is_not_needed(tmp_path: Path) -> None:
    MIMO.build(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    heads = {name: each for name, each in state.items() if "mtp" in name}
    save_file(heads, tmp_path / "heads.safetensors")
    places = {name: "heads.safetensors" if name in heads else "gone.safetensors" for name in state}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert _found(tmp_path) == {}
