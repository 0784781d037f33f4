"""Interface of a reader, with a description of its format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from driftscope.ingest.figures import Figures
from driftscope.ingest.result_file import ResultFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one format."""

    name: str
    """Value of `--format`."""
    title: str
    """Tool and file, with the version that it was written for."""
    gives: str
    lacks: str
    """Quantities that the format cannot give."""
    recognises: Callable[[ResultFile], bool]
    read: Callable[[ResultFile], Iterable[Figures]]
    """Function that returns the figures of a file that it recognises. Raises BadFigureError."""
