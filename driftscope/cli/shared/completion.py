"""Words that the shell offers when a user presses Tab; found by file names and constants alone.

Nothing here reads a manifest or imports a library: a shell asks at every press of the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from driftscope.analysis.conditions import COLUMNS
from driftscope.trace.runs.run_search import DEFAULT_FOLDERS, LATEST, search
from driftscope.vocabulary import FINDINGS, GATED

Word = tuple[str, str]
"""A word and its explanation, which zsh and fish show."""
SEGMENTS = (
    "label",
    "context",
    "prompt",
    "batch",
    "temperature",
    "structured",
    "finish",
    "execution",
    "runner",
    "mode",
    "k",
    "rank",
    "replica",
    "region",
    "language",
    "boundary",
    "copied",
    "hour",
)
"""Values of --by, apart from spans of time."""


def runs(incomplete: str) -> list[Word]:
    """Return `latest`, the runs in the usual folders, and the folders below what is typed."""
    known = [(LATEST, "the newest run")] if _any_run() else []
    known += [(str(run), "run") for folder in DEFAULT_FOLDERS for run in sorted(search(folder))]
    fitting = [word for word in known if word[0].startswith(incomplete)]
    shown = {word for word, _ in fitting}
    return fitting + [(name, "folder") for name in _folders(incomplete) if name not in shown]


def rules(incomplete: str) -> list[Word]:
    """Return the severities and the ids of findings that begin like `incomplete`."""
    known = [*((word, "findings of this severity") for word in GATED)]
    known += [(name, "finding") for name in FINDINGS]
    return [word for word in known if word[0].startswith(incomplete)]


def columns(incomplete: str) -> list[Word]:
    """Complete the last word of a condition to the name of a column."""
    before, _, last = incomplete.rpartition(" ")
    head = f"{before} " if before else ""
    return [
        (f"{head}{name}", column.meaning)
        for name, column in COLUMNS.items()
        if name.startswith(last)
    ]


def segments(incomplete: str) -> list[Word]:
    """Return the properties that runs can be split by."""
    return [(name, "split runs by it") for name in SEGMENTS if name.startswith(incomplete)]


def _any_run() -> bool:
    return any(True for folder in DEFAULT_FOLDERS for _ in search(folder))


def _folders(incomplete: str) -> Iterator[str]:
    """Yield the folders that a half-typed path can mean, with a slash at the end."""
    head, _, begun = incomplete.rpartition("/")
    prefix = f"{head}/" if "/" in incomplete else ""
    try:
        with os.scandir(Path(prefix or ".")) as entries:
            names = sorted(each.name for each in entries if each.is_dir())
    except OSError:
        return
    yield from (
        f"{prefix}{name}/"
        for name in names
        if name.startswith(begun) and (begun or not name.startswith("."))
    )
