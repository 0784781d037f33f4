"""The end of a command's process, which must not change its exit code."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any, NoReturn


def end_process(code: int) -> NoReturn:
    """End the process with `code`, after its threads, its exit functions and its output.

    The interpreter is not torn down: while Arrow's threads run, that now and then aborts a process
    whose work is done (apache/arrow issue 34314), and a gate would exit with -6 instead of 0.
    `multiprocessing` ends its children in the same way.
    """
    stdlib: Any = threading
    stdlib._shutdown()
    stdlib = atexit
    stdlib._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader is gone, or it is closed
            code = code or 1
    os._exit(code)
