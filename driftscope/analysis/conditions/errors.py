"""Errors about conditions that cannot be used: one line that names the place."""

from __future__ import annotations

from difflib import get_close_matches

from driftscope.analysis.conditions.columns import COLUMNS
from driftscope.errors import UsageError

SHOWN_CHARS = 60
"""Most characters of a condition that an error repeats."""
NEAR = 3
"""Most columns that an error suggests."""


def refused(what: str, part: str | None = None, at: int | None = None) -> UsageError:
    """Return the error about `part` of a condition; `at` is the index at which it begins."""
    place = "" if at is None else f", character {at + 1}"
    return UsageError(f"--where{place}: {'' if part is None else shown(part) + ' '}{what}")


def shown(part: str) -> str:
    """Return `part` as an error repeats it: shortened, and without control characters."""
    return repr(part if len(part) <= SHOWN_CHARS else part[: SHOWN_CHARS - 1] + "…")


def printable(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return "".join(each if each.isprintable() else " " for each in text)


def unknown(name: str, at: int, *, in_quotes: bool) -> UsageError:
    """Return the error about a name that is not a column."""
    near = get_close_matches(name.lower(), COLUMNS, n=NEAR)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    quotes = "; put texts in single quotes" if in_quotes else ""
    return refused(f"is not a column{meant}{quotes} (columns: {', '.join(COLUMNS)})", name, at)
