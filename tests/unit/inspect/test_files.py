"""A checkpoint that cannot be read is one clear error, and shards are read as one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import changed

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter, recognise
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.files import read_header, weight_pickles
from driftscope.inspect.inspection import run_checks
from driftscope_lab.trio import trio_path

INDEX = "model.safetensors.index.json"


def _sharded(folder: Path) -> Path:
    path = changed(folder)
    state = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    shards = {name: f"model-{n % 2}.safetensors" for n, name in enumerate(sorted(state))}
    for file in set(shards.values()):
        save_file({name: state[name] for name in state if shards[name] == file}, path / file)
    (path / INDEX).write_text(json.dumps({"weight_map": shards}))
    return path


def test_the_numbers_of_a_file_are_those_that_torch_reads() -> None:
    path = trio_path() / "eagle31" / "model.safetensors"
    for name, expected in load_file(path).items():
        found = read_header(path)[name]
        assert found.shape == tuple(expected.shape)
        np.testing.assert_array_equal(found.array(), expected.float().numpy())


def test_shards_are_read_as_one_checkpoint(tmp_path: Path) -> None:
    sharded, whole = open_drafter(str(_sharded(tmp_path / "a"))), trio_path() / "eagle31"
    assert sharded.tensors.keys() == open_drafter(str(whole)).tensors.keys()


def _missing_shard(folder: Path) -> None:
    (folder / "model-1.safetensors").unlink()


def _truncated(folder: Path) -> None:
    file = folder / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _header_cut(folder: Path) -> None:
    file = folder / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def _incomplete_index(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["extra.weight"] = "model-0.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def _outside(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))


def _only_pickle(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")


def _no_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


def _config(text: str) -> object:
    return lambda folder: (folder / "config.json").write_text(text)


def _field(**values: object) -> object:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


DAMAGE = {
    "missing shard": (_missing_shard, "model-1.safetensors"),
    "truncated": (_truncated, "truncated"),
    "header cut": (_header_cut, "header"),
    "incomplete index": (_incomplete_index, "extra.weight"),
    "index names another folder": (_outside, "outside"),
    "only a pickle": (_only_pickle, "pickle"),
    "no weights": (_no_weights, "safetensors"),
    "config is no JSON": (_config("{"), "not JSON"),
    "config is a list": (_config("[]"), "not a JSON object"),
    "config missing": (lambda folder: (folder / "config.json").unlink(), "missing"),
    "size is text": (_field(hidden_size="256"), "hidden_size"),
    "size is zero": (_field(num_attention_heads=0), "num_attention_heads"),
    "layers are text": (_field(eagle_aux_hidden_state_layer_ids="1,2"), "whole numbers"),
    "no layer config": (
        _field(speculators_model_type="eagle3", transformer_layer_config=None),
        "transformer_layer_config",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_one_clear_error(name: str, tmp_path: Path) -> None:
    damage, words = DAMAGE[name]
    path = _sharded(tmp_path / "a")
    damage(path)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=words) as raised:
        run_checks(Inspected(drafter=open_drafter(str(path))))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["no-such-folder", "owner/repository"])
def test_a_name_that_is_not_there_is_not_downloaded(name: str) -> None:
    with pytest.raises(CheckpointError, match="--download"):
        open_drafter(name)


@pytest.mark.parametrize(
    ("config", "names", "format"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, [], "EAGLE-3"),
        ({"architectures": ["LlamaForCausalLM"]}, ["midlayer.mlp.up_proj.weight"], "EAGLE-3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, [], "EAGLE-1 or EAGLE-2"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            ["fc.weight", "layers.0.x"],
            "EAGLE-1 or EAGLE-2",
        ),
        ({"architectures": ["DFlashDraftModel"]}, [], "DFlash"),
        ({"architectures": ["PeagleLlamaForCausalLM"]}, [], "P-EAGLE"),
        ({"architectures": ["LlamaForCausalLMEagle4"]}, [], "EAGLE-4"),
        ({"medusa_num_heads": 3}, [], "Medusa"),
        ({"num_nextn_predict_layers": 1}, [], "target with MTP heads"),
        ({"speculators_model_type": "dflash"}, [], "speculators format, dflash"),
    ],
)
def test_formats_are_recognised(config: dict[str, object], names: list[str], format: str) -> None:  # noqa: A002
    assert recognise(config, names).name == format


def test_a_target_given_as_the_drafter_is_refused() -> None:
    with pytest.raises(CheckpointError, match="--target"):
        open_drafter(str(trio_path() / "target"))


def test_a_format_that_is_not_compared_still_has_its_numbers_checked(tmp_path: Path) -> None:
    def config(fields: dict[str, object]) -> None:
        fields["architectures"] = ["MedusaModel"]

    path = changed(
        tmp_path / "a", config=config, weights=lambda state: state["fc.weight"].fill_(float("inf"))
    )
    drafter = open_drafter(str(path))
    assert not drafter.format.checked
    assert [each.id for each in run_checks(Inspected(drafter=drafter))] == ["not_finite"]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["pytorch_model.bin", "other.pt"], ["pytorch_model.bin"]),
        (
            ["pytorch_model-1-of-2.bin", "pytorch_model-2-of-2.bin", "a.pt"],
            ["pytorch_model-1-of-2.bin", "pytorch_model-2-of-2.bin"],
        ),
        (["model.pt", "optimizer.pt", "training_args.bin", "rng_state_0.pth"], ["model.pt"]),
        (["optimizer.pt"], []),
        (["b.ckpt", "a.pt"], ["a.pt", "b.ckpt"]),
        ([], []),
    ],
)
def test_weights_are_found_by_name(tmp_path: Path, there: list[str], expected: list[str]) -> None:
    for name in there:
        (tmp_path / name).touch()
    assert [path.name for path in weight_pickles(tmp_path)] == expected
