"""Commands that a report advises, with real servers of the shipped trio."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.pipeline import Inputs, analyze

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

_COMMAND = re.compile(r"`driftscope ((?:pays|ablate) [^`]+)`")
FEW = {
    "pays": ("--limit", "4", "--concurrency", "2", "--rounds", "1", "--warmup", "1", "-o", "again"),
    "ablate": ("--limit", "5"),
}
"""Options that make a command short."""


def _typed(folder: Path, *words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    print(done.stdout, done.stderr)
    return done.returncode


def test_what_is_advised_runs(tmp_path: Path) -> None:
    assert _typed(tmp_path, "pays", "trio", *FEW["pays"][:-1], "out") in {0, 3, 4}
    (drafting,) = (
        path for path in (tmp_path / "out").glob("*/server") if path.parent.name != "no-speculation"
    )
    found = analyze(Inputs(sources=[drafting], labels=["trio"]))
    texts = [
        text for one in (*found.findings, *found.answers) for text in (one.advice, one.statement)
    ]
    commands = {command for text in texts for command in _COMMAND.findall(text)}
    assert {shlex.split(command)[0] for command in commands} == set(FEW)
    for command in commands:
        words = shlex.split(command)
        assert _typed(tmp_path, *words, *FEW[words[0]]) in {0, 3, 4}, command
