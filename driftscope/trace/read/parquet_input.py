"""Opens sealed files safely: regular files only, whose sizes are checked before they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from driftscope.boundary.bounds import (
    MAX_EXPANSION,
    MAX_ROW_GROUP_BYTES,
    MAX_ROWS_PER_BYTE,
    SMALL_FILE_BYTES,
    SMALL_FILE_ROWS,
)
from driftscope.boundary.files import UnfitFileError, first_line, open_regular


@contextmanager
def open_parquet(path: Path, *, checksums: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a sealed file; only its footer is read before its sizes have been checked.

    `checksums`: verify each page's checksum as it is read. Raises OSError, including its subclass
    UnfitFileError for sizes that no recorder writes, and pyarrow.ArrowException.
    """
    with open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        with os.fdopen(os.dup(descriptor), "rb") as handle:
            try:
                file = pq.ParquetFile(handle, page_checksum_verification=checksums)
                _check_sizes(file.metadata, size, path)
                _ = file.schema_arrow.names
            except (ValueError, RuntimeError) as error:  # damaged names, damaged metadata
                raise UnfitFileError(errno.EINVAL, first_line(error), str(path)) from error
            yield file


def _check_sizes(metadata: pq.FileMetaData, size: int, path: Path) -> None:
    """Raise UnfitFileError for a file that would take far more memory than its size suggests."""
    if metadata.num_rows > SMALL_FILE_ROWS + MAX_ROWS_PER_BYTE * size:
        raise _unfit(path, f"holds {metadata.num_rows} rows in {size} bytes")
    most = SMALL_FILE_BYTES + MAX_EXPANSION * size
    for group in range(metadata.num_row_groups):
        # Check the row group only: reading a column's damaged metadata would crash the process.
        size_in_memory = metadata.row_group(group).total_byte_size
        if size_in_memory > min(most, MAX_ROW_GROUP_BYTES):
            raise _unfit(path, f"grows from {size} to {size_in_memory} bytes")


def _unfit(path: Path, words: str) -> UnfitFileError:
    return UnfitFileError(errno.EFBIG, f"{words}, which the recorder never writes", str(path))
