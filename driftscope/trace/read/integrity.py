"""Checks whether the sealed files of a run are as they were written.

A process notes the CRC-32 of each file that it seals in its status. A file without a CRC-32,
sealed just before a kill, is accepted as it is. Its Parquet pages have their
own checksums, which are verified whenever a file is read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq

from driftscope.trace.format.segment import digest_of
from driftscope.trace.format.status import Status
from driftscope.trace.read.parquet_input import open_parquet


def damaged_files(run: Path, statuses: Iterable[Status]) -> Mapping[Path, str]:
    """Return the sealed files whose bytes have changed since, with a description of each file's
    damage. Raises OSError for a file that cannot be read."""
    noted = {name: digest for status in statuses for name, digest in status.digests.items()}
    files = {run / name: digest for name, digest in noted.items() if name == Path(name).name}
    return {
        path: f"{path.name} is damaged {_damage(path)}: the file is left out"
        for path, digest in sorted(files.items())
        if path.is_file() and digest_of(path) != digest
    }


def _damage(path: Path) -> str:
    """Return the first damaged column and rows, in words."""
    try:
        with open_parquet(path, checksums=True) as file:
            damaged = list(_damaged_chunks(file))
    except (ValueError, RuntimeError, OSError):
        return "in its footer"
    return damaged[0] if damaged else "outside its rows"


def _damaged_chunks(file: pq.ParquetFile) -> Iterator[str]:
    first = 0
    for group in range(file.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        for column in file.schema_arrow.names:
            try:
                file.read_row_group(group, columns=[column])
            except (ValueError, RuntimeError, OSError):
                yield f"column {column}, rows {first + 1} to {last}"
        first = last
