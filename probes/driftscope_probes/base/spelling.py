"""Suggests the known name that an unknown one resembles."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean X?" for the most similar known name, or "" if none is similar.

    All names begin with `prefix`, which does not make them similar.
    """
    import difflib  # seldom needed, and this runs in every process of an engine

    short = [each.removeprefix(prefix) for each in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), short, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
