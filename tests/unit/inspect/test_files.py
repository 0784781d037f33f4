"""Files of a checkpoint: what is read and what is refused, whatever their values."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import AUX, TARGET, as_speculators, changed, speculators_names
from support.command import assert_fails, run_command
from support.hostile.models import (
    every_edit,
    header_of,
    linked,
    reshaped,
    rewrite,
    with_value,
    write_header,
)
from support.inspections import broken
from support.waiting import no_hang

from driftscope.boundary.json_document import INSPECTION
from driftscope.errors import EXIT_ERROR, CheckpointError
from driftscope.inspect.checkpoints import open_drafter, recognise
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.checks.tensors import left_out
from driftscope.inspect.files import Opening, read_header, weight_pickles
from driftscope.inspect.inspection import inspect_files, run_checks, to_json
from driftscope.inspect.pickles import read_pickle
from driftscope.inspect.trial.drafting import as_served
from driftscope.json_schema import schema_of
from driftscope.trace.manifest import weights_digest
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
    "config is no JSON": (_config("{"), "not readable"),
    "config is a list": (_config("[]"), "not a JSON object"),
    "config begins with a mark": (_config("\ufeff{}"), "byte order mark"),
    "pointer of Git LFS": (
        lambda folder: (folder / "model-0.safetensors").write_text("version https://git-lfs"),
        "git lfs pull",
    ),
    "pointer in place of a pickle": (
        lambda folder: (
            _only_pickle(folder),
            (folder / "pytorch_model.bin").write_text("version https://git-lfs"),
        ),
        "git lfs pull",
    ),
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
        ({"architectures": ["Qwen3ForCausalLM"]}, ["midlayer.x"], "EAGLE-3"),
        ({"medusa_num_heads": 3}, [], "Medusa"),
        (
            {"model_type": "glm_moe_dsa", "num_nextn_predict_layers": 1},
            [],
            "target with MTP heads (DeepseekV32MTPModel)",
        ),
        ({"speculators_model_type": "dflash"}, [], "DFlash, speculators format"),
        (
            {"speculators_model_type": "peagle", "transformer_layer_config": {}},
            [],
            "P-EAGLE, speculators format",
        ),
    ],
)
def test_formats_are_recognised(config: dict[str, object], names: list[str], format: str) -> None:  # noqa: A002
    assert recognise(config, names).name == format


def test_a_target_given_as_the_drafter_is_refused() -> None:
    with pytest.raises(CheckpointError, match="--target"):
        open_drafter(str(trio_path() / "target"))


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


class _Hostile:
    """Touches a file when it is loaded as an ordinary pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def _pickled(folder: Path, name: str = "pytorch_model.bin", *, legacy: bool = False) -> Path:
    path = changed(folder)
    state = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save(state, path / name, _use_new_zipfile_serialization=not legacy)
    return path


def _allowed() -> Opening:
    return Opening(read_pickle=read_pickle)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_the_tensors_are_those_of_the_safetensors_file(tmp_path: Path, legacy: bool) -> None:
    whole = open_drafter(str(changed(tmp_path / "a")))
    found = open_drafter(str(_pickled(tmp_path / "b", legacy=legacy)), _allowed())
    assert found.tensors.keys() == whole.tensors.keys()
    for name, tensor in found.tensors.items():
        expected = whole.tensors[name]
        assert (tensor.dtype, tensor.shape, tensor.bytes) == (
            *(expected.dtype, expected.shape, expected.bytes),
        )
        np.testing.assert_array_equal(tensor.array(), expected.array())
        rows = np.array([0, len(tensor.array()) - 1])
        np.testing.assert_array_equal(tensor.rows(rows), expected.rows(rows))
    assert not [
        run_check
        for run_check in run_checks(Inspected(drafter=found))
        if run_check.level == "error"
    ]


def test_weights_of_a_trainers_checkpoint_are_found_beside_its_state(tmp_path: Path) -> None:
    path = changed(tmp_path / "a")
    state = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    torch.save({"state_dict": state, "step": 3}, path / "last.ckpt")
    torch.save({"lr": 0.1}, path / "optimizer.pt")
    assert "fc.weight" in open_drafter(str(path), _allowed()).tensors


def test_without_permission_the_error_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--allow-pickle"):
        open_drafter(str(_pickled(tmp_path / "a")))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path: Path, legacy: bool) -> None:
    path, touched = _pickled(tmp_path / "a"), tmp_path / "touched"
    hostile = {"fc.weight": torch.zeros(2), "x": _Hostile(touched)}
    torch.save(hostile, path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="holds more than tensors") as refused:
        open_drafter(str(path), _allowed())
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value)
    assert not touched.exists()


def _protocol_only(path: Path) -> None:
    path.write_bytes(b"\x80\x02")


def _plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"a": [1, 2]}))


def _archive_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))


def _a_list(path: Path) -> None:
    torch.save([torch.zeros(2)], path)


def _larger_than_its_storage(path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(1).expand(1 << 40)}, path)


@pytest.mark.parametrize(
    "damage",
    [
        *(_protocol_only, _plain_pickle, _archive_cut_short, _other_archive),
        *(_a_list, _larger_than_its_storage, _bomb),
    ],
    ids=lambda damage: damage.__name__.strip("_"),
)
def test_a_damaged_pickle_is_one_error_that_names_the_file(tmp_path: Path, damage: object) -> None:
    path = _pickled(tmp_path / "a")
    damage(path / "pytorch_model.bin")  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin") as found:
        open_drafter(str(path), _allowed())
    assert "\n" not in str(found.value)


def test_several_pickles_are_not_guessed_between(tmp_path: Path) -> None:
    path = _pickled(tmp_path / "a", "one.pt")
    torch.save({"a": torch.zeros(1)}, path / "two.pt")
    with pytest.raises(CheckpointError, match="several pickles"):
        open_drafter(str(path), _allowed())


Change = Callable[[dict[str, torch.Tensor]], object]


def _drafter(folder: Path, change: Change | None = None) -> str:
    """The shipped drafter's weights, changed; the files differ in nothing but tensors' bytes."""
    state = load_file(trio_path() / "eagle31" / "model.safetensors")
    if change is not None:
        change(state)
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    return str(folder)


def test_equal_weights_have_equal_digests_wherever_they_lie(tmp_path: Path) -> None:
    first, second = (weights_digest(_drafter(tmp_path / name)) for name in "ab")
    assert first == second
    assert first is not None and len(first) == 16


@pytest.mark.parametrize(
    "change",
    [
        lambda state: [tensor.mul_(1.01) for tensor in state.values()],
        lambda state: state["norm.weight"].fill_(1),
        lambda state: state["lm_head.weight"].copy_(state["lm_head.weight"].flip(0)),
        lambda state: state["fc.weight"][-1].add_(1),
    ],
    ids=["trained on", "one norm", "permuted head", "one row"],
)
def test_other_weights_in_files_of_the_same_layout_have_another_digest(
    tmp_path: Path, change: Change
) -> None:
    plain, changed = _drafter(tmp_path / "a"), _drafter(tmp_path / "b", change)
    assert weights_digest(plain) != weights_digest(changed)


def test_weights_that_are_not_there_or_not_readable_have_none(tmp_path: Path) -> None:
    assert weights_digest(str(tmp_path)) is None
    assert weights_digest("no-such-owner/no-such-model") is None
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert weights_digest(str(tmp_path)) is None


def test_an_inspection_holds_every_repair(tmp_path: Path) -> None:
    inspection = broken(tmp_path)
    document = json.loads(to_json(inspection, 3))
    jsonschema.validate(document, schema_of(INSPECTION))
    assert inspection.trial is not None
    assert [tried["change"]["id"] for tried in document["trial"]["tried"]] == [
        tried.change.id for tried in inspection.trial.tried
    ]


EAGLE3 = trio_path() / "eagle3"
TARGET_LAYERS = 4
SHARE = 7
"""One edit in so many is tried, with another value for each field."""


def _attempt(drafter: Path, target: Path = TARGET) -> None:
    """Inspect both and make the drafter ready to run; an error has one line."""
    for work in (
        lambda: to_json(inspect_files(str(drafter), str(target)), 0),
        lambda: as_served(open_drafter(str(drafter)), TARGET_LAYERS).check(),
    ):
        try:
            work()
        except CheckpointError as error:
            assert "\n" not in str(error)


def _config_edits(model: Path, name: str, *, more: bool = True) -> Iterator[str]:
    content: dict[str, Any] = json.loads((model / name).read_text())
    for label, text in islice(every_edit(content, more=more), 0, None, SHARE):
        print(label)  # which edit failed
        yield text


def test_any_value_of_a_drafters_config(tmp_path: Path) -> None:
    drafter = linked(trio_path() / "eagle31", tmp_path / "drafter")
    for text in _config_edits(drafter, "config.json"):
        rewrite(drafter / "config.json", text)
        _attempt(drafter)


def test_any_value_of_a_config_in_the_speculators_format(tmp_path: Path) -> None:
    made = changed(tmp_path / "a", config=as_speculators, weights=speculators_names)
    drafter = linked(made, tmp_path / "drafter")
    for text in _config_edits(made, "config.json", more=False):
        rewrite(drafter / "config.json", text)
        _attempt(drafter)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_any_value_of_a_targets_files(tmp_path: Path, name: str) -> None:
    target = linked(TARGET, tmp_path / "target")
    for text in _config_edits(TARGET, name, more=name == "config.json"):
        rewrite(target / name, text)
        _attempt(EAGLE3, target)


def test_any_value_of_a_header(tmp_path: Path) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    header, body = header_of(drafter)
    some = {name: header[name] for name in ("fc.weight", "norm.weight", "__metadata__")}
    for label, text in islice(every_edit(some, more=False), 0, None, SHARE):
        print(label)
        rest = {name: entry for name, entry in header.items() if name not in some}
        write_header(drafter, f"{text[:-1]}, {json.dumps(rest)[1:]}", body)
        _attempt(drafter)


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "lm_head.weight"])
@pytest.mark.parametrize("shape", [[], [0], [0, 768], [7], [3, 5], [1] * 8, [1] * 65])
def test_any_shape_of_a_tensor(tmp_path: Path, name: str, shape: list[int]) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    reshaped(drafter, name, shape)
    _attempt(drafter)
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert done.returncode in (1, 3) and "Warning" not in done.stderr


def _overlapping(model: Path) -> None:
    header, body = header_of(model)
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = [0, end - begin]
    write_header(model, json.dumps(header), body)


def _followed(model: Path) -> None:
    header, body = header_of(model)
    write_header(model, json.dumps(header), body + bytes(100))


def _preceded(model: Path) -> None:
    header, body = header_of(model)
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]
    write_header(model, json.dumps(header), bytes(8) + body)


def _unknown_type(model: Path) -> None:
    header, body = header_of(model)
    header["fc.weight"]["dtype"] = "F33"
    write_header(model, json.dumps(header), body)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_overlapping, "does not begin where the tensor before it ends"),
        (_preceded, "does not begin where the tensor before it ends"),
        (_followed, "100 bytes follow its last tensor"),
        (_unknown_type, "safetensors refuses it"),
    ],
)
def test_a_file_that_engines_refuse_is_no_sound_file(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    damage(drafter)
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert_fails(done, EXIT_ERROR, words)


def _hostile_field(name: str, text: str) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        content = json.loads((model / "config.json").read_text())
        content.setdefault(name, 0)
        (model / "config.json").write_text(with_value(content, (name,), text))

    return edit


def _tensors(number: int) -> Callable[[Path], None]:
    def edit(model: Path) -> None:
        entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        write_header(model, json.dumps({f"x{n}": entry for n in range(number)}), b"")

    return edit


def _empty_entries(model: Path) -> None:
    entries = ",".join(f'"{n}":{{}}' for n in range(1_500_000))
    write_header(model, f"{{{entries}}}", b"")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            _hostile_field("num_hidden_layers", "1000000000"),
            "num_hidden_layers is 1000000000",
        ),
        (_hostile_field("num_hidden_layers", "1000000"), "num_hidden_layers is 1000000"),
        (
            _hostile_field("num_aux_hidden_states", "1000000000"),
            "num_aux_hidden_states is 1000000000",
        ),
        (_hostile_field(AUX, json.dumps(list(range(10**6)))), f"{AUX} is [0, 1"),
        (_hostile_field("rope_theta", "1" + 400 * "0"), "out of bounds"),
        (_tensors(250_000), "has more than 1048576 values"),
        (_empty_entries, "bytes, more than"),
    ],
    ids=["10^9 layers", "10^6 layers", "states", "layer list", "401 digits", "tensors", "entries"],
)
def test_a_small_file_takes_neither_long_nor_much(
    tmp_path: Path, edit: Callable[[Path], None], words: str
) -> None:
    drafter = Path(shutil.copytree(EAGLE3, tmp_path / "drafter"))
    edit(drafter)
    shown = words.replace("[", r"\[").replace("^", r"\^")
    with no_hang(), pytest.raises(CheckpointError, match=shown):
        inspect_files(str(drafter), str(TARGET))


def test_a_header_within_the_bound_takes_little_memory(tmp_path: Path) -> None:
    _tensors(60_000)(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(read_header(tmp_path / "model.safetensors")) == 60_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("entry", ["re:(a+)+$", "re:(.*)*x", "re:.*.*.*.*x", "re:" + "(" * 4000])
def test_a_pattern_without_an_end_is_not_tried(entry: str) -> None:
    with no_hang():
        left_out("model." + "a" * 2_000 + ".weight", {"ignore": [entry]})
