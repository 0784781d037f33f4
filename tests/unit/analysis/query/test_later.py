"""Queries that run beside others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from driftscope.analysis.query.query_engine import DuckDB, Later
from driftscope.analysis.query.record_views import table
from driftscope.errors import DamagedTraceError

NUMBERS = pa.table({"request": ["a", "b"], "replica": pa.array([0, 0], pa.int64())})


def _engine(rows: pa.Table = NUMBERS) -> DuckDB:
    engine = DuckDB()
    engine.view("request", rows, rows.schema)
    return engine


def _names(rows: pa.Table) -> list[str]:
    return sorted(rows.column("request").to_pylist())


def test_it_answers_as_the_query_itself() -> None:
    engine, query = _engine(), table("request").select("request")
    later = engine.later(query)
    assert _names(later.value) == _names(engine.rows(query)) == ["a", "b"]
    engine.close()


@pytest.mark.parametrize("begun", ["never", "in order", "the other way round"])
def test_views_are_those_of_the_moment_it_was_asked_for(begun: str) -> None:
    engine, query = _engine(), table("request").select("request")
    before = engine.later(query)
    engine.view("request", NUMBERS.slice(1), NUMBERS.schema)
    after = engine.later(query)
    orders = {"in order": [before, after], "the other way round": [after, before]}
    for each in orders.get(begun, []):
        each.begin()
        each.begin()  # it is begun already
    assert _names(after.value) == ["b"]
    assert _names(before.value) == ["a", "b"]
    engine.close()


def test_an_error_is_told_when_the_rows_are_asked_for(tmp_path: Path) -> None:
    engine = _engine()
    engine.define("request", "SELECT CAST(request AS BIGINT) AS request FROM request_rows")
    failing = engine.later(table("request").select("request"))
    for _ in range(2):
        with pytest.raises(DamagedTraceError, match=r"cannot be processed|Could not convert"):
            failing.wait()
    engine.close()


def test_a_query_that_nobody_waits_for_ends_with_the_engine() -> None:
    engine = _engine()
    engine.define(
        "request",
        "SELECT CAST(sum(a.range) AS VARCHAR) AS request FROM range(10000000) a, range(10000000) b",
    )
    engine.later(table("request").select("request")).begin()
    engine.close()  # returns, although the query would take hours


def test_a_changed_value_begins_with_the_one_that_it_is_made_of() -> None:
    begun: list[int] = []
    changed = Later(lambda: 1, lambda: begun.append(1)).then(str)
    assert begun == []
    changed.begin()
    assert (begun, changed.value) == ([1], "1")


def test_a_value_is_made_once() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    doubled = Later(make).then(lambda value: 2 * value)
    assert made == []
    assert (doubled.value, doubled.value, made) == (2, 2, [1])
