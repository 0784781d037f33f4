"""Converts Python values to Arrow arrays and Arrow arrays to numpy, buffer by buffer.

`pyarrow.array` and `numpy.asarray` do this and more, but import pandas to do it, which is too much
for a user's serving process. A trace contains only nulls, strings, numbers, booleans and lists of
numbers.
"""

from __future__ import annotations

from array import array as packed_array
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, chain
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


_PACKED = {"b": "b", "i": "i", "l": "q", "f": "f", "d": "d"}
"""NumPy type character -> type code of the `array` module, which converts a list in one call."""


def list_array(
    values: NDArray[Any], present: NDArray[np.bool_] | None, kind: pa.DataType
) -> pa.Array:
    """Return rows of [rows, numbers] as an Arrow list array, null where not `present`.

    Raises TypeError for numbers whose type does not fit `kind`.
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
    """Return `values`, each None or of a type that `kind` holds, as an Arrow array.

    Raises TypeError, ValueError, OverflowError or AttributeError for a value that does not fit.
    """
    return builder_of(kind)(values)


@cache
def builder_of(kind: pa.DataType) -> Callable[[Any], pa.Array]:
    """Return `array_of` for one type, cached because pyarrow compares types slowly, as texts."""
    if kind in _NUMPY:
        return partial(_array_of_numbers, kind, _NUMPY[kind])
    if pa.types.is_list(kind):
        return partial(_array_of_lists, kind, builder_of(kind.value_type))
    return partial(_array_of_strings if pa.types.is_string(kind) else _array_of_bools, kind)


def _array_of_numbers(kind: pa.DataType, dtype: np.dtype[Any], values: Any) -> pa.Array:
    size, bitmap = len(values), None
    if isinstance(values, list):
        try:
            packed = packed_array(_PACKED[dtype.char], values)
        except TypeError:  # a null, or a value that does not fit
            pass
        else:
            return pa.Array.from_buffers(kind, size, [None, pa.py_buffer(packed)])
    numbers = values if isinstance(values, np.ndarray) else np.array(values, ndmin=1)
    if numbers.dtype == object:
        bitmap = _validity(values)
        numbers = np.array(_without_none(values, 0), ndmin=1)
    fits = _checked(numbers, "i" if dtype.kind == "i" else "if").astype(dtype)
    return pa.Array.from_buffers(kind, size, [bitmap, pa.py_buffer(np.ascontiguousarray(fits))])


def _array_of_lists(
    kind: pa.DataType, build: Callable[[Any], pa.Array], values: list[Any]
) -> pa.Array:
    full = _without_none(values, ())
    items = build(list(chain.from_iterable(full)))
    buffers = [_validity(values), _ends(full)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[items])


def _array_of_strings(kind: pa.DataType, values: list[Any]) -> pa.Array:
    bitmap = None
    if None in values:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        bitmap, values = _validity(values), _without_none(values, "")
    encoded = [text.encode() for text in values]
    buffers = [bitmap, _ends(encoded), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


def _array_of_bools(kind: pa.DataType, values: list[Any]) -> pa.Array:
    truth = _checked(np.array(_without_none(values, False), ndmin=1), "b").astype(bool)
    return pa.Array.from_buffers(kind, len(values), [_validity(values), _bits(truth)])


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Return the [n] numbers of an array without a copy; values under nulls are arbitrary."""
    dtype = _NUMPY[array.type]
    if not len(array):
        return np.empty(0, dtype)
    start = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, count=len(array), offset=start)


def validity_of(array: pa.Array) -> NDArray[np.bool_]:
    """Return [n] bool: True where `array` is not null."""
    return numbers_of(array.is_valid().cast(pa.int8())).astype(np.bool_)


def lengths_of(lists: pa.ListArray) -> NDArray[np.int32]:
    """Return the [n] lengths of the lists, 0 for null."""
    lengths: NDArray[np.int32] = np.diff(numbers_of(lists.offsets))
    return lengths


def lists_of(items: NDArray[Any], lengths: NDArray[np.int32], valid: NDArray[np.bool_]) -> pa.Array:
    """Return lists of these lengths, filled with `items` in order; null where not `valid`."""
    child = with_validity(items)
    buffers = [None if valid.all() else _bits(valid), _offsets(lengths)]
    return pa.Array.from_buffers(pa.list_(child.type), len(lengths), buffers, children=[child])


def with_validity(numbers: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return `numbers` as an Arrow array of the same type; null where `valid` is False."""
    bitmap = None if valid is None or valid.all() else _bits(valid)
    buffers = [bitmap, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def _validity(values: list[Any]) -> pa.Buffer | None:
    """Return the validity bitmap, or None if no value is null."""
    if not _some_none(values):
        return None
    return _bits(np.array([value is not None for value in values]))


def _without_none(values: list[Any], filler: Any) -> list[Any]:
    """Replace nulls by `filler`: a value under a null is never read but must exist."""
    if not _some_none(values):
        return values
    return [filler if value is None else value for value in values]


def _some_none(values: list[Any]) -> bool:
    """Return whether a value is None, by identity: `==` on a numpy array gives no plain answer."""
    return any(value is None for value in values)


def _checked(array: NDArray[Any], kinds: str) -> NDArray[Any]:
    """Return `array`; raise TypeError unless numpy found its values to be of one of `kinds`."""
    if array.size and array.dtype.kind not in kinds:
        raise TypeError(f"values of type {array.dtype} do not fit the column")
    return array


def _ends(values: list[Any]) -> pa.Buffer:
    """Return where each of `values` begins when they are concatenated, and where the last ends."""
    return pa.py_buffer(packed_array("i", accumulate(map(len, values), initial=0)))


def _offsets(lengths: NDArray[np.int32]) -> pa.Buffer:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.py_buffer(ends)


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())
