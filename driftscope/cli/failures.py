"""Messages for a missing extra and for an unexpected error."""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Iterator

from driftscope.errors import UsageError


class MissingExtraError(UsageError):
    """A package of an extra is not installed."""


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise MissingExtraError with the extra's name if an import inside the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0].startswith("driftscope"):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed: pip install 'driftscope[{extra}]'"
        ) from error


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
