"""Says which extra to install, where a package is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports in here that fail raise UsageError with the extra's name."""
    from driftscope.errors import UsageError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0].startswith("driftscope"):
            raise
        raise UsageError(
            f"{error.name} is not installed: pip install 'driftscope[{extra}]'"
        ) from error
