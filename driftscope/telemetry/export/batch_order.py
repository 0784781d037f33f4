"""The order in which batches of records are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from driftscope.trace.write.record_files import Batch

_LAST = "request"
"""Record that is counted last: a request's final round is counted before its end."""


def together(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield one batch per record, in order: the cost of counting is per batch, hardly per row."""
    by_record: dict[str, list[pa.RecordBatch]] = {}
    for record, batch in in_order(batches):
        by_record.setdefault(record, []).append(batch)
    for record, several in by_record.items():
        for batch in pa.Table.from_batches(several).combine_chunks().to_batches():
            yield record, batch


def in_order(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches in the order in which they are counted."""
    return sorted(batches, key=lambda batch: batch[0] == _LAST)
