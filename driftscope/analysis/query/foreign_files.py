"""Error texts about files of another run in a run's folder: which files they are, and what to
do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.compute as pc

from driftscope.analysis.query.record_views import Tables
from driftscope.trace.format.segment import segments
from driftscope.trace.read.reader import read_segment

NAMED = 5
"""Largest number of files that an error names."""
_LENGTHS = {"draft": "k", "step": "k", "verify": "drafted"}


def chains_too_long(tables: Tables, configured: int, longest: int) -> str:
    """Return the error text for chains of more tokens than the run was configured for."""
    paths = [
        path
        for record, column in _LENGTHS.items()
        for path in _files(tables.path, record, column, lambda most: most > configured)
    ]
    return (
        f"{tables.path}: chains of K = {longest} in a run whose manifest says K = {configured}, so "
        f"its files belong to two runs{_listed(paths)}; {_DO}"
    )


def two_drafters(tables: Tables, layers: list[int]) -> str:
    """Return the error text for chains of drafters with different numbers of layers."""
    named_layers = tables.manifest.drafter_layers
    own = named_layers if named_layers in layers else layers[0]
    paths = _files(tables.path, "draft", "layers", lambda most: most != own)
    return (
        f"{tables.path}: drafters of {' and '.join(map(str, layers))} layers in one run, so its "
        f"files belong to two runs{_listed(paths)}; {_DO}"
    )


_DO = "move the files of the other run into a folder of their own, with its manifest.json"


def _files(run: Path, record: str, column: str, strange: Callable[[int], bool]) -> Iterable[Path]:
    for path in segments(run, record):
        table = read_segment(path, [])
        if column in table.column_names and table.num_rows:
            most = pc.max(table.column(column)).as_py()
            if most is not None and strange(int(most)):
                yield path


def _listed(files: Iterable[Path]) -> str:
    names = sorted({path.name for path in files})
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f" ({', '.join(names[:NAMED])}{more})" if names else ""
