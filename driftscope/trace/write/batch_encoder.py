"""Builds rows of queued items, and batches of the rows; what cannot be built is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from driftscope.trace.format.privacy import Pseudonyms
from driftscope.trace.format.records import Row
from driftscope.trace.format.row_block import Block
from driftscope.trace.write.record_files import Batch, batches_of

Deferred = Callable[[], Iterable[Row]]
"""Function that builds rows on the writer's thread: cheap to pass on, costly to run."""
Encode = Callable[[list[Any]], Iterable[Row | Block]]
"""Function that builds rows of all waiting items: many items at once cost little more than one."""
Work = tuple[Encode, Any]
"""An `Encode` function and one item for it; a plain tuple, because every step creates one on the
serving thread."""
Item = Row | Deferred | Work


class LossCounts(Protocol):
    """Counts what is lost."""

    def count_error(self, hook: str, error: BaseException) -> None:
        """Count an exception that was swallowed."""

    def count_dropped(self, cause: str, rows: int) -> None:
        """Count lost rows by their cause."""


class BatchEncoder:
    """Turns the items of one flush into record batches."""

    def __init__(self, losses: LossCounts, pseudonyms: Pseudonyms | None) -> None:
        """`pseudonyms` replaces identifiers; None: they are kept."""
        self._losses, self._pseudonyms = losses, pseudonyms

    def batches(self, items: list[Item]) -> list[Batch]:
        """Return the batches of `items`; those that cannot be encoded are dropped and counted."""
        rows: list[Row | Block] = []
        for count, build in _grouped(items):
            try:
                rows.extend(build())
            except Exception as error:  # the border: a bad capture costs its rows, not the run
                self._losses.count_dropped("encode_error", count)
                self._losses.count_error("encode", error)
        return self._encoded(rows)

    def _encoded(self, rows: list[Row | Block]) -> list[Batch]:
        batches: list[Batch] = []
        try:
            for record, batch in batches_of(rows):
                named = batch if self._pseudonyms is None else self._pseudonyms.batch(batch)
                batches.append((record, named))  # what was built before an error is kept
        except Exception as error:  # a value that does not fit its column
            number = sum(row.rows if isinstance(row, Block) else 1 for row in rows)
            encoded = sum(batch.num_rows for _, batch in batches)
            self._losses.count_dropped("encode_error", number - encoded)
            self._losses.count_error("encode", error)
        return batches


def _grouped(items: list[Item]) -> Iterator[tuple[int, Callable[[], Iterable[Row | Block]]]]:
    """Yield counts of items and functions that build their rows: in order, except that work for one
    function is combined."""
    work: dict[Any, list[Any]] = {}
    latest, waiting = None, None
    for item in items:
        if isinstance(item, tuple):
            if waiting is None or item[0] is not latest:
                latest = item[0]
                waiting = work.setdefault(latest, [])
            waiting.append(item[1])
        elif callable(item):
            yield 1, item
        else:
            yield 1, functools.partial(_one, item)
    for encode, several in work.items():
        yield len(several), functools.partial(encode, several)


def _one(row: Row) -> Iterable[Row]:
    return (row,)
