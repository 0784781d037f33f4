"""The line before a target is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.cli.trial_run import loading_line


@pytest.mark.parametrize(("size", "words"), [(7_100_000, "7.1 MB"), (2_500_000_000, "2.5 GB")])
def test_it_tells_how_much_is_loaded(tmp_path: Path, size: int, words: str) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size // 2)  # a hole: no disk is used
    (tmp_path / "config.json").write_text("{}")
    assert loading_line(tmp_path) == f"loading the target: {words} in {tmp_path}"
