"""Pickles of weights differ by name from those of a trainer's state."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.inspect.files import weight_pickles


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
