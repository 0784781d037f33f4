"""The folder of a query engine: gone at the end, whatever the end is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from driftscope.analysis.query.query_engine import ABANDONED_S, Scratch
from driftscope.errors import UsageError

CHILD = """
import sys
from driftscope.analysis.query.query_engine import Scratch
mine = Scratch()
print(mine.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def _child() -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def _age(folder: Path) -> None:
    old = time.time() - 2 * ABANDONED_S
    os.utime(folder, (old, old))


def test_it_is_private_and_goes_when_it_is_closed(base: Path) -> None:
    scratch = Scratch()
    (scratch.path / "spill").write_text("rows")
    assert scratch.path.parent == base
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    scratch.close()
    scratch.close()
    assert not list(base.iterdir())


@pytest.mark.process
def test_it_goes_with_its_process(base: Path) -> None:
    child, folder = _child()
    assert folder.is_dir()
    child.communicate("")
    assert child.returncode == 0 and not folder.exists()


@pytest.mark.process
def test_that_of_a_killed_process_goes_with_the_next(base: Path) -> None:
    child, folder = _child()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    _age(folder)
    assert folder.is_dir()
    Scratch().close()
    assert not folder.exists()


@pytest.mark.process
def test_that_of_a_running_process_stays(base: Path) -> None:
    child, folder = _child()
    _age(folder)
    Scratch().close()
    assert folder.is_dir()
    child.communicate("")


def test_a_young_folder_and_what_is_no_folder_stay(base: Path) -> None:
    young, link = base / "driftscope-queries-young", base / "driftscope-queries-link"
    young.mkdir()
    link.symlink_to(base.parent)
    Scratch().close()
    assert young.is_dir() and link.is_symlink()


def test_a_tmpdir_that_is_a_pattern_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a[b]"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(UsageError, match="set TMPDIR to another"):
        Scratch()
