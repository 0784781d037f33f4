"""Plain Parquet: the rows of a run in one file per record, with every column that it has.

Files of a run directory leave out columns that follow from others and are read with driftscope;
these are for any other reader.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow.parquet as pq

from driftscope.trace.reader import Trace

RECORDS = {"draft": "chains", "verify": "rounds", "step": "steps", "request": "requests"}
"""File by record."""


def files_of(trace: Trace) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file; a record without a row has a file without one."""
    for record, name in RECORDS.items():
        buffer = io.BytesIO()
        pq.write_table(getattr(trace, record), buffer, compression="zstd")
        yield f"{name}.parquet", buffer.getvalue()
