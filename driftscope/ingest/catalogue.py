"""Readers by name, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from driftscope.boundary.json_document import INGESTED, text, written_names
from driftscope.errors import UsageError
from driftscope.ingest import engines, prometheus, tools
from driftscope.ingest.base import (
    REGISTERED,
    BadFigureError,
    Figures,
    IngestedFigures,
    Reader,
    ResultFile,
    completed,
    open_result,
)

_MODULES = (engines, prometheus, tools)
"""Modules that enter readers into REGISTERED."""
READERS: Mapping[str, Reader] = REGISTERED


def ingest(path: Path, name: str | None = None) -> tuple[Reader, tuple[Figures, ...]]:
    """Read a result file with the reader `name`, or with the one that recognises it.

    Raises UsageError for a file that cannot be read, that no reader or several recognise, or whose
    content no tool writes.
    """
    file = open_result(path)
    reader = _chosen(file) if name is None else READERS.get(name)
    if reader is None:
        raise UsageError(f"--format {name}: no such format; there are {', '.join(READERS)}")
    try:
        found = tuple(completed(figures) for figures in reader.read(file))
    except BadFigureError as error:
        raise UsageError(f"{path}: is no file of {reader.title}: {error}") from error
    if all(figures.is_empty and figures.accepted is None for figures in found):
        raise UsageError(f"{path}: {reader.title}: holds no figure of acceptance or time")
    return reader, found


def _chosen(file: ResultFile) -> Reader:
    mine: Sequence[Reader] = [reader for reader in READERS.values() if reader.recognises(file)]
    if len(mine) == 1:
        return mine[0]
    if not mine:
        raise UsageError(
            f"{file.path}: no known format; `driftscope ingest --list` lists them, and --format "
            "names one"
        )
    names = ", ".join(reader.name for reader in mine)
    raise UsageError(f"{file.path}: fits {names}; name one with --format")


def to_json(found: Sequence[tuple[Path, Reader, tuple[Figures, ...]]]) -> str:
    """Return the figures of all files as text, newline at the end."""
    names = written_names(IngestedFigures)
    files = [
        {
            "file": path.name,
            "format": reader.name,
            "figures": [{name: getattr(part, name) for name in names} for part in parts],
        }
        for path, reader, parts in found
    ]
    return text(INGESTED, {"files": files})
