"""Many rows of one record as columns: what a serving process hands over instead of row objects.

Making an object for every chain costs the serving process's interpreter more than all the rest of
recording; columns go from numpy to Arrow as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from driftscope.trace.arrays import list_array
from driftscope.trace.schema import builders_of, schema_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """A list column whose rows are equally long, or null."""

    values: npt.NDArray[Any]
    """[rows, numbers] float32 or int32."""
    present: npt.NDArray[np.bool_] | None = None
    """[rows]; None: every row is there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """`rows` rows of `record`.

    A column is an array or a list of values, `Lists`, or one value that all rows share.
    """

    record: str
    rows: int
    columns: Mapping[str, Any]

    def to_batch(self) -> pa.RecordBatch:
        """Raises KeyError for a column that is missing, and what array_of raises."""
        arrays = [
            self._array(self.columns[name], kind, build)
            for name, kind, build in builders_of(self.record)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(self.record))

    def _array(self, column: Any, kind: pa.DataType, build: Callable[[Any], pa.Array]) -> pa.Array:
        if isinstance(column, np.ndarray | list):
            return build(column)
        if isinstance(column, Lists):
            return list_array(column.values, column.present, kind)
        return pa.nulls(self.rows, kind) if column is None else build([column] * self.rows)
