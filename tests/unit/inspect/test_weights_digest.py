"""Models with other weights have another digest, and nothing that is there makes a start fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from driftscope.inspect.weights_digest import weights_digest
from driftscope_lab.trio import trio_path

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
