"""Many rows of one record as columns, which a serving process passes on instead of row objects.

Creating an object for every chain costs the serving process's interpreter more than the rest of
recording; columns pass from numpy to Arrow unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftscope.trace.format.arrow_arrays import list_array
from driftscope.trace.format.schema import builders_of, schema_of

LEAST_CONSTANT = 256
"""Smallest length of a cached constant column, so that it is long enough for the next flush."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """A list column whose rows are null or equally long."""

    values: npt.NDArray[Any]
    """[rows, numbers] float32 or int32."""
    present: npt.NDArray[np.bool_] | None = None
    """[rows] bool: whether the row is present; None: all rows are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A block of `rows` rows of `record`.

    A column is an array or a list of values, `Lists`, or one value shared by all rows.
    """

    record: str
    rows: int
    columns: Mapping[str, Any]

    def to_batch(self) -> pa.RecordBatch:
        """Return an Arrow batch. Raises KeyError for a missing column, and as array_of does."""
        columns, arrays = self.columns, []
        for name, kind, build in builders_of(self.record):
            column = columns[name]
            if isinstance(column, np.ndarray | list):
                arrays.append(build(column))
            elif isinstance(column, Lists):
                arrays.append(list_array(column.values, column.present, kind))
            else:
                arrays.append(_repeated((self.record, name), column, self.rows, kind, build))
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(self.record))


_constant: dict[tuple[str, str], tuple[Any, pa.Array]] = {}
"""(record, column) -> value of all rows at the last flush, and an array of it, at least as long."""


def _repeated(
    of: tuple[str, str], value: Any, rows: int, kind: pa.DataType, build: Callable[[Any], pa.Array]
) -> pa.Array:
    """Return an array that repeats `value`, cached because the value rarely changes."""
    before, known = _constant.get(of, (None, None))
    if known is None or len(known) < rows or before is not value:
        number = max(rows, LEAST_CONSTANT)
        known = pa.nulls(number, kind) if value is None else build([value] * number)
        _constant[of] = value, known
    return known.slice(0, rows)
