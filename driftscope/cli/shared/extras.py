"""Error messages that name the extra to install when a package is missing."""

from __future__ import annotations

import contextlib
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
