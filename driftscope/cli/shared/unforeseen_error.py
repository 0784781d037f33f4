"""What is said of an exception that nobody foresaw: one line, and where its traceback is."""

from __future__ import annotations

import os
import tempfile
import traceback

DEBUG = "DRIFTSCOPE_DEBUG"
"""Set to 1, it has the traceback raised as it is."""


def unforeseen(error: Exception) -> str:
    """Return one line on `error`; its traceback is kept in a file that the line names.

    Raises `error` again where DEBUG is set.
    """
    if os.environ.get(DEBUG) == "1":
        raise error
    kind = type(error).__name__
    return (
        f"{kind}: {error}. This is a defect of driftscope; please report it with {_kept(error)} "
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
