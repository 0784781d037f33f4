"""Report of an unexpected exception: one line, and the file with its traceback."""

from __future__ import annotations

import os
import tempfile
import traceback

DEBUG = "DRIFTSCOPE_DEBUG"
"""Environment variable; if it is 1, the exception is raised again with its traceback."""


def unforeseen(error: Exception) -> str:
    """Return one line on `error`, which names a file that keeps its traceback.

    Raises `error` again if the environment variable DEBUG is set to 1.
    """
    if os.environ.get(DEBUG) == "1":
        raise error
    kind = type(error).__name__
    return (
        f"{kind}: {error}. This is a bug in driftscope; please report it with {_kept(error)} "
        f"({DEBUG}=1 prints it)"
    )


def _kept(error: Exception) -> str:
    text = "".join(traceback.format_exception(error))
    try:
        handle, name = tempfile.mkstemp(prefix="driftscope-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return "its traceback, which could not be written to a file"
    return name
