"""Files of a checkpoint: what is read and what is refused, whatever their values."""

from __future__ import annotations

import json
import pickle
import re
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import (
    AUX,
    TARGET,
    State,
    as_speculators,
    changed,
    sharded,
    speculators_names,
    stored,
)
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
    return sharded(changed(folder))


def test_the_numbers_of_a_file_are_those_that_torch_reads() -> None:
    path = trio_path() / "eagle31" / "model.safetensors"
    for name, expected in load_file(path).items():
        found = read_header(path)[name]
        assert found.shape == tuple(expected.shape)
        np.testing.assert_array_equal(found.array(), expected.float().numpy())


def test_shards_are_read_as_one_checkpoint(tmp_path: Path) -> None:
    sharded, whole = open_drafter(str(_sharded(tmp_path / "a"))), trio_path() / "eagle31"
    assert sharded.tensors.keys() == open_drafter(str(whole)).tensors.keys()


def test_every_file_without_an_index_is_read_but_for_a_second_format(tmp_path: Path) -> None:
    """vLLM loads them all, an adapter's too."""
    path = changed(tmp_path / "a")
    for name in ("adapter_model", "consolidated"):
        save_file({f"{name}.weight": torch.ones(1)}, path / f"{name}.safetensors")
    found = (
        open_drafter(str(path)).tensors.keys() - open_drafter(str(changed(tmp_path / "b"))).tensors
    )
    assert found == {"adapter_model.weight"}


Damage = Callable[[Path], object]


def _cut(end: int) -> Damage:
    return lambda folder: (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:end])


def _index(**more: str) -> Damage:
    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        (folder / INDEX).write_text(json.dumps({"weight_map": {**index["weight_map"], **more}}))

    return damage


def _only_pickle(content: bytes | None) -> Damage:
    def damage(folder: Path) -> None:
        for file in folder.glob("model*"):
            file.unlink()
        if content is not None:
            (folder / "pytorch_model.bin").write_bytes(content)

    return damage


def _config(text: str) -> Damage:
    return lambda folder: (folder / "config.json").write_text(text)


def _field(**values: object) -> Damage:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        _config(json.dumps({**config, **values}))(folder)

    return damage


def _instead(name: str) -> Damage:
    def damage(folder: Path) -> None:
        _only_pickle(None)(folder)
        (folder / name).touch()

    return damage


def _twice(folder: Path) -> None:
    (folder / INDEX).unlink()
    shutil.copy(folder / "model-0.safetensors", folder / "model-2.safetensors")


def _renamed(folder: Path) -> None:
    (folder / INDEX).unlink()
    name = "midlayer.hidden_norm.weight"
    again = {name.replace("midlayer", "layers.0"): stored("eagle31")[name]}
    save_file(again, folder / "again.safetensors")


SHARD = "model-1.safetensors"
DAMAGE: dict[str, tuple[Damage, str]] = {
    "missing shard": (lambda folder: (folder / SHARD).unlink(), SHARD),
    "truncated": (_cut(-100), "truncated"),
    "header cut": (_cut(20), "header"),
    "incomplete index": (_index(extra="model-0.safetensors"), "extra"),
    "index names another folder": (_index(a="../b.safetensors"), "outside"),
    "only a pickle": (_only_pickle(b"\x80\x02"), "pickle"),
    "no weights": (_only_pickle(None), "safetensors"),
    "shards of FSDP": (_instead("__0_0.distcp"), "dcp_to_torch_save"),
    "a folder of DeepSpeed": (_instead("zero_to_fp32.py"), "DeepSpeed"),
    "a GGUF file": (_instead("drafter.gguf"), "GGUF"),
    "an adapter": (_instead("adapter_model.safetensors"), "merge_and_unload"),
    "a tensor in two files": (_twice, r"model-0\.safetensors"),
    "a tensor under two names": (_renamed, "the same tensor"),
    "config is no JSON": (_config("{"), "not readable"),
    "config is a list": (_config("[]"), "not a JSON object"),
    "config begins with a mark": (_config("\ufeff{}"), "byte order mark"),
    "pointer of Git LFS": (
        lambda folder: (folder / SHARD).write_text("version https://git-lfs"),
        "git lfs pull",
    ),
    "pointer in place of a pickle": (_only_pickle(b"version https://git-lfs"), "git lfs pull"),
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
    damage(path)
    with pytest.raises(CheckpointError, match=words) as raised:
        run_checks(Inspected(drafter=open_drafter(str(path))))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-such-folder", "--download"),
        ("owner/repository", "--download"),
        (str(TARGET), "--target"),
    ],
)
def test_a_name_that_is_not_there_or_a_target_is_refused(name: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_drafter(name)


GLM = "target with MTP heads (DeepseekV32MTPModel)"


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
        ({"model_type": "glm_moe_dsa", "num_nextn_predict_layers": 1}, [], GLM),
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
    (path / "model.safetensors").unlink()
    torch.save(stored("eagle31"), path / name, _use_new_zipfile_serialization=not legacy)
    return path


ALLOWED = Opening(read_pickle=read_pickle)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_the_tensors_are_those_of_the_safetensors_file(tmp_path: Path, legacy: bool) -> None:
    whole = open_drafter(str(changed(tmp_path / "a")))
    found = open_drafter(str(_pickled(tmp_path / "b", legacy=legacy)), ALLOWED)
    assert found.tensors.keys() == whole.tensors.keys()
    for name, tensor in found.tensors.items():
        expected = whole.tensors[name]
        rows = np.array([0, len(tensor.array()) - 1])
        read, wanted = (
            (one.dtype, one.shape, one.bytes, one.array().tolist(), one.rows(rows).tolist())
            for one in (tensor, expected)
        )
        assert read == wanted
    assert not [one for one in run_checks(Inspected(drafter=found)) if one.level == "error"]


def test_weights_of_a_trainers_checkpoint_are_found_beside_its_state(tmp_path: Path) -> None:
    path = changed(tmp_path / "a")
    (path / "model.safetensors").unlink()
    torch.save({"state_dict": stored("eagle31"), "step": 3}, path / "last.ckpt")
    torch.save({"lr": 0.1}, path / "optimizer.pt")
    assert "fc.weight" in open_drafter(str(path), ALLOWED).tensors


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path: Path, legacy: bool) -> None:
    path, touched = _pickled(tmp_path / "a"), tmp_path / "touched"
    hostile = {"fc.weight": torch.zeros(2), "x": _Hostile(touched)}
    torch.save(hostile, path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="holds more than tensors") as refused:
        open_drafter(str(path), ALLOWED)
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value)
    assert not touched.exists()


def _archive(name: str, content: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


PICKLES: dict[str, Damage] = {
    "protocol only": lambda path: path.write_bytes(b"\x80\x02"),
    "plain pickle": lambda path: path.write_bytes(pickle.dumps({"a": [1, 2]})),
    "archive cut short": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "other archive": partial(_archive, "a", b"b"),
    "bomb": partial(_archive, "archive/data.pkl", bytes(1 << 20)),
    "a list": lambda path: torch.save([torch.zeros(2)], path),
    "larger than its storage": lambda path: torch.save(
        {"fc.weight": torch.zeros(1).expand(1 << 40)}, path
    ),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_damaged_pickle_is_one_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    path = _pickled(tmp_path / "a")
    PICKLES[name](path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin") as found:
        open_drafter(str(path), ALLOWED)
    assert "\n" not in str(found.value)


def test_several_pickles_are_not_guessed_between(tmp_path: Path) -> None:
    path = _pickled(tmp_path / "a", "one.pt")
    torch.save({"a": torch.zeros(1)}, path / "two.pt")
    with pytest.raises(CheckpointError, match="several pickles"):
        open_drafter(str(path), ALLOWED)


def test_equal_weights_have_equal_digests_wherever_they_lie(tmp_path: Path) -> None:
    first, second = (weights_digest(str(changed(tmp_path / name))) for name in "ab")
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
    tmp_path: Path, change: Callable[[State], object]
) -> None:
    plain, other = changed(tmp_path / "a"), changed(tmp_path / "b", weights=change)
    assert weights_digest(str(plain)) != weights_digest(str(other))


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


@pytest.mark.parametrize("speculators", [False, True], ids=["shipped", "speculators format"])
def test_any_value_of_a_drafters_config(tmp_path: Path, *, speculators: bool) -> None:
    edits = {"config": as_speculators, "weights": speculators_names} if speculators else {}
    made = changed(tmp_path / "a", **edits)
    drafter = linked(made, tmp_path / "drafter")
    for text in _config_edits(made, "config.json", more=not speculators):
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
    drafter = changed(tmp_path / "drafter", EAGLE3)
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
    drafter = changed(tmp_path / "drafter", EAGLE3)
    reshaped(drafter, name, shape)
    _attempt(drafter)
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert done.returncode in (1, 3) and "Warning" not in done.stderr


def _moved(change: Callable[[int, int], list[int]], before: int = 0, after: int = 0) -> Damage:
    def damage(model: Path) -> None:
        header, body = header_of(model)
        for name in header.keys() - {"__metadata__"}:
            header[name]["data_offsets"] = change(*header[name]["data_offsets"])
        write_header(model, json.dumps(header), bytes(before) + body + bytes(after))

    return damage


def _unknown_type(model: Path) -> None:
    header, body = header_of(model)
    header["fc.weight"]["dtype"] = "F33"
    write_header(model, json.dumps(header), body)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_moved(lambda a, b: [0, b - a]), "does not begin where the tensor before it ends"),
        (_moved(lambda a, b: [a + 8, b + 8], 8), "does not begin where the tensor before it ends"),
        (_moved(lambda a, b: [a, b], after=100), "100 bytes follow its last tensor"),
        (_unknown_type, "safetensors refuses it"),
    ],
)
def test_a_file_that_engines_refuse_is_no_sound_file(
    tmp_path: Path, damage: Damage, words: str
) -> None:
    damage(drafter := changed(tmp_path / "drafter", EAGLE3))
    done = run_command("inspect", drafter, "--target", TARGET, "--files-only")
    assert_fails(done, EXIT_ERROR, words)


def _hostile_field(name: str, text: str) -> Damage:
    def edit(model: Path) -> None:
        content = json.loads((model / "config.json").read_text())
        content.setdefault(name, 0)
        (model / "config.json").write_text(with_value(content, (name,), text))

    return edit


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def _tensors(number: int, entry: dict[str, Any] = EMPTY) -> Damage:
    return lambda model: write_header(model, json.dumps(dict.fromkeys(range(number), entry)), b"")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_hostile_field("num_hidden_layers", "1000000000"), "num_hidden_layers is 1000000000"),
        (_hostile_field("num_hidden_layers", "1000000"), "num_hidden_layers is 1000000"),
        (
            _hostile_field("num_aux_hidden_states", "1000000000"),
            "num_aux_hidden_states is 1000000000",
        ),
        (_hostile_field(AUX, json.dumps(list(range(10**6)))), f"{AUX} is [0, 1"),
        (_hostile_field("rope_theta", "1" + 400 * "0"), "out of bounds"),
        (_tensors(250_000), "has more than 1048576 values"),
        (_tensors(1_500_000, {}), "bytes, more than"),
    ],
    ids=["10^9 layers", "10^6 layers", "states", "layer list", "401 digits", "tensors", "entries"],
)
def test_a_small_file_takes_neither_long_nor_much(tmp_path: Path, edit: Damage, words: str) -> None:
    edit(drafter := changed(tmp_path / "drafter", EAGLE3))
    with no_hang(), pytest.raises(CheckpointError, match=re.escape(words)):
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
