"""Error messages that name the extra to install when a package is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise UsageError with the extra's name if an import inside the block fails."""
    from driftscope.errors import UsageError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0].startswith("driftscope"):
            raise
        raise UsageError(
            f"{error.name} is not installed: pip install 'driftscope[{extra}]'"
        ) from error
