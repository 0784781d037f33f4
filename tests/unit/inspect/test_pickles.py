"""Pickles give the tensors that safetensors give, and those that hold more are refused."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import changed

from driftscope.errors import CheckpointError
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.checks.result import Inspected
from driftscope.inspect.files import Opening
from driftscope.inspect.inspection import run_checks
from driftscope.inspect.pickles import read_pickle


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
    assert not [each for each in run_checks(Inspected(drafter=found)) if each.level == "error"]


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


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")


def _a_list(path: Path) -> None:
    torch.save([torch.zeros(2)], path)


def _larger_than_its_storage(path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(1).expand(1 << 40)}, path)


@pytest.mark.parametrize(
    "damage",
    [
        *(_protocol_only, _plain_pickle, _truncated, _other_archive),
        *(_a_list, _larger_than_its_storage),
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
