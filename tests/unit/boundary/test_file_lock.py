"""A directory's lock keeps others out, ends with its holder, and is never waited for in vain."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driftscope.boundary.file_lock import locked

HOLDER = """
import sys, time
from pathlib import Path
from driftscope.boundary.file_lock import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_another_process_waits_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="for too long"), locked(tmp_path, 0.2):
            pass
        assert time.monotonic() - begun < 5
        holder.kill()
        holder.wait()
        with locked(tmp_path, 0.2):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(errno.EBADF, "as NFS has it for a directory")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        pass


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none"):
        pass
