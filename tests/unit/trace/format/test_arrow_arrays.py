"""Arrays built from buffers equal those that pyarrow builds, and cost no import of pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.trace.schema import (
    array_of,
    lengths_of,
    lists_of,
    numbers_of,
    validity_of,
)

FLOAT32 = st.floats(width=32, allow_nan=False)
BY_TYPE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(),
    pa.bool_(): st.booleans(),
    pa.list_(pa.float32()): st.lists(FLOAT32, max_size=9),
    pa.list_(pa.int32()): st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9),
}


@pytest.mark.parametrize("kind", BY_TYPE, ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_equals_what_pyarrow_builds(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | BY_TYPE[kind], max_size=20))
    built = array_of(values, kind)
    built.validate(full=True)
    assert built.equals(pa.array(values, kind))
    assert built.null_count == sum(value is None for value in values)


def test_nan_stays_nan_and_is_not_null() -> None:
    built = array_of([[0.5, float("nan")]], pa.list_(pa.float32()))
    assert built.null_count == 0
    assert np.isnan(built.flatten().to_numpy()[1])


@given(st.lists(st.none() | st.lists(FLOAT32, max_size=4), max_size=9), st.integers(0, 3))
def test_lists_come_apart_and_together(values: list[list[float] | None], skipped: int) -> None:
    """Slices too, whose buffers begin before them."""
    built = array_of(values, pa.list_(pa.float32()))[skipped:]
    items, lengths, valid = numbers_of(built.flatten()), lengths_of(built), validity_of(built)
    assert lengths.tolist() == [len(each or ()) for each in values[skipped:]]
    assert lists_of(items, lengths, valid).equals(built)


def test_numpy_values_do_as_well() -> None:
    values = [np.array([1.0, 2.5], np.float32), (3.0,), None]
    assert array_of(values, pa.list_(pa.float32())).to_pylist() == [[1.0, 2.5], [3.0], None]
    assert array_of([np.int64(3), np.int32(-1)], pa.int64()).to_pylist() == [3, -1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["3 of them"], pa.int64()),
        ([1.5], pa.int64()),
        ([2**63], pa.int64()),
        (["often"], pa.float64()),
        ([7], pa.string()),
        ([1], pa.bool_()),
        ([[1.0, "x"]], pa.list_(pa.float32())),
        ([3.0], pa.list_(pa.float32())),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: list[Any], kind: pa.DataType) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        array_of(values, kind)


WRITE_A_RUN = """
import sys, time
from pathlib import Path
from support.runs import noisy_rows
from driftscope.trace.writer import TraceWriter
writer = TraceWriter(Path(sys.argv[1]), source="worker0-1")
for row in noisy_rows(20):
    writer.put(row)
writer.close()
assert len(list(Path(sys.argv[1]).glob("*.parquet"))) == 3
assert "pandas" not in sys.modules, "pandas in a serving process"
"""


@pytest.mark.process
def test_writing_a_run_imports_no_pandas(tmp_path: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITE_A_RUN, str(tmp_path / "run")]
    code = subprocess.run(command, check=False, env=environment)
    assert code.returncode == 0
