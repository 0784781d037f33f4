"""Columns that a sealed file leaves out are made again only of what a writer writes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from driftscope.trace.segments import DERIVED_KEY, derived_of, restore

LISTS = pa.array([[1.0, 2.0]], pa.list_(pa.float32()))


def table(derived: bytes, **columns: pa.Array) -> pa.Table:
    return pa.table(columns).replace_schema_metadata({DERIVED_KEY: derived})


def test_a_state_follows_from_another() -> None:
    found = restore(table(b'{"fed_rms": "prenorm_rms"}', prenorm_rms=LISTS))
    assert found.column("fed_rms").to_pylist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "derived",
    [
        b"{",
        b"[]",
        b"[" * 9000,
        b'{"step": "x"}',
        b'{"fed_rms": 7}',
        b'{"fed_rms": "step"}',
        b'{"fed_rms": []}',
    ],
)
def test_metadata_that_no_writer_writes(derived: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        derived_of(table(derived, prenorm_rms=LISTS).schema)


@pytest.mark.parametrize("column", [pa.array(["x"]), pa.array([1.5]), pa.nulls(1)])
def test_a_column_of_another_type_is_named(column: pa.Array) -> None:
    """It once was an AttributeError."""
    with pytest.raises(ValueError, match="prenorm_rms holds"):
        restore(table(b'{"fed_rms": "prenorm_rms"}', prenorm_rms=column))
