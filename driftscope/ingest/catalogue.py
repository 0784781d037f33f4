"""Readers by name, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftscope.boundary.json_document import INGESTED, text
from driftscope.errors import UsageError
from driftscope.ingest import engines, prometheus, tools
from driftscope.ingest.base import (
    REGISTERED,
    BadFigureError,
    Figures,
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
    files = [
        {
            "file": path.name,
            "format": reader.name,
            "figures": list(map(_figures, every)),
        }
        for path, reader, every in found
    ]
    return text(INGESTED, {"files": files})


def _figures(figures: Figures) -> dict[str, Any]:
    spread = figures.length_interval
    return {
        "part": figures.part,
        "period": figures.period,
        "k": figures.k,
        "requests": figures.requests,
        "rounds": figures.rounds,
        "verified": figures.verified,
        "accepted": figures.accepted,
        "mean_length": figures.length,
        "mean_length_interval": spread and {"low": spread.low, "high": spread.high},
        "mean_length_by_request": figures.length_by_request,
        "token_rate": figures.token_rate,
        "marginal": figures.marginal,
        "ttft_s": figures.ttft_s,
        "tpot_s": figures.tpot_s,
        "output_tokens_per_s": figures.output_per_s,
        "assumptions": figures.assumptions,
        "contradictions": figures.contradictions,
    }
