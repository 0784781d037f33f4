"""Arrow arrays from Python values and back to numpy, buffer by buffer.

`pyarrow.array` and `numpy.asarray` do the same and more, and import pandas to do it; in somebody's
serving process that is too much. Nulls, strings, numbers, booleans and lists of numbers are all
that a trace has.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_NUMPY: dict[pa.DataType, np.dtype[Any]] = {
    pa.int8(): np.dtype("int8"),
    pa.int32(): np.dtype("int32"),
    pa.int64(): np.dtype("int64"),
    pa.float32(): np.dtype("float32"),
    pa.float64(): np.dtype("float64"),
}


def list_array(
    values: NDArray[Any], present: NDArray[np.bool_] | None, kind: pa.DataType
) -> pa.Array:
    """Rows of [rows, numbers] as an Arrow list array, null where not `present`.

    Raises TypeError for numbers that are not those of `kind`.
    """
    rows, numbers = values.shape
    dtype = _NUMPY[kind.value_type]
    flat = values if present is None else values[present]
    flat = np.ascontiguousarray(_checked(flat, "i" if dtype.kind == "i" else "if"), dtype=dtype)
    ends = np.zeros(rows + 1, np.int32)
    full = np.full(rows, numbers, np.int32) if present is None else present * np.int32(numbers)
    np.cumsum(full, out=ends[1:])
    items = pa.Array.from_buffers(kind.value_type, flat.size, [None, pa.py_buffer(flat.ravel())])
    bitmap = None if present is None else _bits(present)
    return pa.Array.from_buffers(kind, rows, [bitmap, pa.py_buffer(ends)], children=[items])


def array_of(values: Any, kind: pa.DataType) -> pa.Array:
    """`values`, each of a type that `kind` holds or None, as an Arrow array.

    Raises TypeError, ValueError, OverflowError or AttributeError for a value that does not fit.
    """
    size = len(values)
    if kind in _NUMPY:
        return _array_of_numbers(values, kind)
    bitmap = _validity(values)
    if pa.types.is_list(kind):
        full = _without_none(values, ())
        items = array_of(list(chain.from_iterable(full)), kind.value_type)
        buffers = [bitmap, _offsets(list(map(len, full)))]
        return pa.Array.from_buffers(kind, size, buffers, children=[items])
    if pa.types.is_string(kind):
        encoded = [text.encode() for text in _without_none(values, "")]
        data = pa.py_buffer(b"".join(encoded))
        return pa.Array.from_buffers(kind, size, [bitmap, _offsets(list(map(len, encoded))), data])
    truth = _checked(np.array(_without_none(values, False), ndmin=1), "b").astype(bool)
    return pa.Array.from_buffers(kind, size, [bitmap, _bits(truth)])


def _array_of_numbers(values: Any, kind: pa.DataType) -> pa.Array:
    dtype, size, bitmap = _NUMPY[kind], len(values), None
    numbers = values if isinstance(values, np.ndarray) else np.array(values, ndmin=1)
    if numbers.dtype == object:
        bitmap = _validity(values)
        numbers = np.array(_without_none(values, 0), ndmin=1)
    fits = _checked(numbers, "i" if dtype.kind == "i" else "if").astype(dtype)
    return pa.Array.from_buffers(kind, size, [bitmap, pa.py_buffer(np.ascontiguousarray(fits))])


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """[n] what an array of numbers holds, without a copy; under a null lies anything."""
    dtype = _NUMPY[array.type]
    if not len(array):
        return np.empty(0, dtype)
    start = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, count=len(array), offset=start)


def validity_of(array: pa.Array) -> NDArray[np.bool_]:
    """[n] where `array` is not null."""
    return numbers_of(array.is_valid().cast(pa.int8())).astype(np.bool_)


def lengths_of(lists: pa.ListArray) -> NDArray[np.int32]:
    """[n] elements of each list, 0 for null."""
    lengths: NDArray[np.int32] = np.diff(numbers_of(lists.offsets))
    return lengths


def lists_of(items: NDArray[Any], lengths: NDArray[np.int32], valid: NDArray[np.bool_]) -> pa.Array:
    """Lists of these lengths, filled with `items` in order; null where not `valid`."""
    child = with_validity(items)
    buffers = [None if valid.all() else _bits(valid), _offsets(lengths)]
    return pa.Array.from_buffers(pa.list_(child.type), len(lengths), buffers, children=[child])


def with_validity(numbers: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """`numbers` as an Arrow array of the same type; null where not `valid`, where that is given."""
    bitmap = None if valid is None or valid.all() else _bits(valid)
    buffers = [bitmap, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def _validity(values: list[Any]) -> pa.Buffer | None:
    """Of an array with nulls."""
    if not _some_none(values):
        return None
    return _bits(np.array([value is not None for value in values]))


def _without_none(values: list[Any], filler: Any) -> list[Any]:
    """What stands under a null is never read, but has to be there."""
    if not _some_none(values):
        return values
    return [filler if value is None else value for value in values]


def _some_none(values: list[Any]) -> bool:
    """By identity: a numpy array among the values has no plain answer to `==`."""
    return any(value is None for value in values)


def _checked(array: NDArray[Any], kinds: str) -> NDArray[Any]:
    """`array`, whose values numpy must have found to be of one of `kinds`."""
    if array.size and array.dtype.kind not in kinds:
        raise TypeError(f"values of type {array.dtype} do not fit the column")
    return array


def _offsets(lengths: list[int] | NDArray[np.int32]) -> pa.Buffer:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.py_buffer(ends)


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())
