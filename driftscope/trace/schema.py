"""Arrow schemas of the records, derived from the dataclasses so that a column is declared once; how
values become columns; and which columns hold content or identifiers.

The schema applies to a stream and to what a reader returns. A sealed file holds the same rows with
limited precision, see `driftscope.trace.segments`.

`pyarrow.array` and `numpy.asarray` convert values and more, but import pandas to do it, which is
too much for a user's serving process. A trace contains only nulls, strings, numbers, booleans and
lists of numbers. A serving process passes on whole columns as a `Block`, because an object for
every chain costs its interpreter more than the rest of recording.

=================================  ==========================================================
`kind_of("request", "label")`       IDENTIFIER
`Pseudonyms(key).name("cmpl-7")`    16 hex digits, equal wherever the key is equal
`Pseudonyms(key).batch(...)`        a batch with hashed request ids and without trace context
=================================  ==========================================================
"""

from __future__ import annotations

import hashlib
import types
import typing
from array import array as packed_array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.trace.records import RECORDS, Floats, Ints, Row

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
    encoded = [text.encode("utf-8", "replace") for text in values]
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
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None if valid.all() else _bits(valid), pa.py_buffer(ends)]
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


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little").tobytes())


_ARROW: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    Floats: pa.list_(pa.float32()),
    Ints: pa.list_(pa.int32()),
}


def _arrow_type(annotation: Any) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of an annotation, and whether it may be null."""
    if isinstance(annotation, types.UnionType):
        (inner,) = (a for a in typing.get_args(annotation) if a is not type(None))
        return _ARROW[inner], True
    return _ARROW[annotation], False


@cache
def schema_of(record: str) -> pa.Schema:
    """Return the Arrow schema of the record named `record`; raises KeyError if unknown."""
    hints = typing.get_type_hints(RECORDS[record])
    columns = [(name, *_arrow_type(hint)) for name, hint in hints.items()]
    return pa.schema([pa.field(name, kind, nullable=null) for name, kind, null in columns])


@cache
def builders_of(record: str) -> tuple[tuple[str, pa.DataType, Callable[[Any], pa.Array]], ...]:
    """Return the columns of a record: name, type, and builder of an Arrow array of values."""
    return tuple((field.name, field.type, builder_of(field.type)) for field in schema_of(record))


_NAMES = {cls: name for name, cls in RECORDS.items()}


def record_of(row: Row) -> str:
    """Return the name of a row's record."""
    return _NAMES[type(row)]


def to_batch(record: str, rows: Iterable[Row]) -> pa.RecordBatch:
    """Return one Arrow batch of `rows`, all of the named record."""
    rows = list(rows)
    arrays = [build([getattr(row, name) for row in rows]) for name, _, build in builders_of(record)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(record))


def conform(table: pa.Table, record: str) -> pa.Table:
    """Return `table` with the columns of `record`, all nullable; columns of a newer minor version
    are dropped.

    A table without columns, of a stream that broke off in its header, has no rows. Raises KeyError
    for a missing column.
    """
    nullable = pa.schema([f.with_nullable(True) for f in schema_of(record)])
    if not table.num_columns:
        return nullable.empty_table()
    return pa.table([table.column(f.name).cast(f.type) for f in nullable], schema=nullable)


def nulls_as_nan(table: pa.Table) -> pa.Table:
    """Return `table` with NaN in place of null elements of its lists of floats: NumPy has no number
    for them. A recorder writes none, and Arrow allows them."""
    for at, field in enumerate(table.schema):
        if not (pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type)):
            continue
        chunks = table.column(at).chunks
        if any(chunk.values.null_count and chunk.flatten().null_count for chunk in chunks):
            filled = [_with_nan(chunk) for chunk in chunks]
            table = table.set_column(at, field, pa.chunked_array(filled, field.type))
    return table


def _with_nan(lists: pa.ListArray) -> pa.ListArray:
    items, valid = lists.flatten(), validity_of(lists)
    numbers = np.where(validity_of(items), numbers_of(items), np.nan)
    lengths = np.where(valid, lengths_of(lists), 0).astype(np.int32)
    return lists_of(numbers.astype(_NUMPY[lists.type.value_type]), lengths, valid)


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


CONTENT = "content"
"""Text or tokens of a prompt or an answer, or data that reveals a known text."""
IDENTIFIER = "identifier"
"""Names given by a client, an operator or a machine: of a request, a workload, a process."""
FIGURE = "figure"
"""Numbers, times, flags, and words that the engine chooses."""
KINDS = (CONTENT, IDENTIFIER, FIGURE)

_CONTENT = "token_ids prompt_digest conversation error digest region_starts region_codes"
_CONTENT += " region_languages region_boundaries region_copies"
_IDENTIFIERS = "request label traceparent session pair adapter source response condition"
_FIGURES = "strategy execution reason finish_reason structured ended verified accepted"
MARKED: Mapping[str, str] = {
    **dict.fromkeys(_CONTENT.split(), CONTENT),
    **dict.fromkeys(_IDENTIFIERS.split(), IDENTIFIER),
    **dict.fromkeys(_FIGURES.split(), FIGURE),
}
"""Kinds of the columns that hold texts or lists of whole numbers."""

REQUEST, TRACEPARENT = "request", "traceparent"
HASHED = (REQUEST, "prompt_digest", "conversation", "session", "pair")
"""Columns of which a run without identifiers has keyed hashes."""
NAME_BYTES = 8
"""Bytes of a hashed request id. Two of a million requests share one with probability 3e-8."""


def kind_of(record: str, column: str) -> str:
    """Return CONTENT, IDENTIFIER or FIGURE.

    Numbers, flags and lists of measured numbers are figures. Raises KeyError for any other column
    that MARKED does not name, so that a new text is never taken for a figure by mistake.
    """
    return FIGURE if _is_measured(schema_of(record).field(column).type) else MARKED[column]


def _is_measured(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return bool(pa.types.is_floating(kind.value_type))
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


class Pseudonyms:
    """Replaces the columns HASHED by keyed hashes, removes the trace context and changes nothing
    else.

    Rows of one request have the same hash wherever the key is the same, so that records still join,
    and so have equal prompts and requests of one session. The key is not stored in the run: without
    it nobody can test which id or prompt a hash stands for.
    """

    def __init__(self, key: bytes) -> None:
        """`key`: 1 to 64 random bytes, shared by the processes of a run."""
        self._key = key

    def name(self, request: str) -> str:
        """Return the hash of a request id, 16 hex digits."""
        text = request.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=NAME_BYTES).hexdigest()

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of any record with their identifiers replaced."""
        names = batch.schema.names
        for at in [names.index(name) for name in HASHED if name in names]:
            batch = batch.set_column(at, batch.schema.field(at), self._hashed(batch.column(at)))
        if TRACEPARENT in names:
            at = names.index(TRACEPARENT)
            field = batch.schema.field(at)
            batch = batch.set_column(at, field, pa.nulls(batch.num_rows, field.type))
        return batch

    def _hashed(self, names: pa.Array) -> pa.Array:
        """Hash each name once: a batch has many rows of few requests. Null stays null."""
        given = names.to_pylist()
        hashed = {name: None if name is None else self.name(name) for name in set(given)}
        return array_of([hashed[name] for name in given], names.type)
