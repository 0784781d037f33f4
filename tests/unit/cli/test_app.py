"""The end of a process, and packages that are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from driftscope.distributions import needs
from driftscope.errors import UsageError

PROGRAM = """
import atexit, threading, time
from driftscope.cli.app import end_process
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("command")
end_process(3)
"""


@pytest.mark.process
def test_output_threads_and_exit_functions_come_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.split("\n") == ["command", "thread", "exit function", ""]


@pytest.mark.process
def test_output_that_nobody_reads_is_an_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("(3)", "(0)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 1


def test_a_missing_package() -> None:
    with (
        pytest.raises(UsageError, match=r"nowhere is not installed: pip install 'driftscope\[x\]'"),
        needs("x"),
    ):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401


def test_a_module_of_ours_that_is_missing_is_a_bug_and_said_as_one() -> None:
    with pytest.raises(ModuleNotFoundError), needs("x"):
        import driftscope.nowhere  # type: ignore[import-not-found]  # noqa: F401
