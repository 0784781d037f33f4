"""DuckDB as the engine of queries: locked, and reading the given files and no others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.folders import folder_names

from driftscope.analysis.query.query_engine import DuckDB, Files, usable_cores
from driftscope.errors import DamagedTraceError

SCHEMA = pa.schema([("accepted", pa.int64()), ("label", pa.string())])
COLUMNS = {"accepted": pa.int64(), "label": pa.string()}


@pytest.fixture
def engine() -> Iterator[DuckDB]:
    with closing(DuckDB()) as engine:
        yield engine


def _files(*paths: Path) -> Files:
    return Files(paths=paths, columns=COLUMNS, constant={})


def _written(folder: Path, label: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verify-0.parquet"
    pq.write_table(pa.table({"accepted": [1, 2], "label": [label, None]}, SCHEMA), path)
    return path


def _rows(engine: DuckDB, *paths: Path) -> list[dict[str, object]]:
    engine.admit(paths)
    engine.view("verify", [_files(*paths)], SCHEMA)
    table = ibis.table(ibis.Schema.from_pyarrow(SCHEMA), name="verify")
    return list(engine.rows(table.order_by("accepted")).to_pylist())


@settings(max_examples=60)
@given(folder_names())
@example("a*b")
@example("a?b")
@example("a[X]b")
@example("accepted=8")
def test_a_path_is_literal_whatever_the_folder_is_called(name: str) -> None:
    with tempfile.TemporaryDirectory() as base, closing(DuckDB()) as engine:
        _written(Path(base) / "aXb", "a neighbour")
        path = _written(Path(base) / name, "mine")
        assert _rows(engine, path) == [
            {"accepted": 1, "label": "mine"},
            {"accepted": 2, "label": None},
        ]


def test_a_relative_path_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: DuckDB
) -> None:
    _written(tmp_path / "s3:" / "run", "mine")
    monkeypatch.chdir(tmp_path)
    assert _rows(engine, Path("s3:/run/verify-0.parquet"))[0]["label"] == "mine"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('secret.csv')",
        "SELECT * FROM read_parquet('elsewhere/verify-0.parquet')",
        "SELECT * FROM glob('*')",
        "SELECT 1; COPY (SELECT 42) TO 'pwn.csv'",
        "SELECT 1; ATTACH 'pwn.db'",
        "SELECT 1; SET memory_limit = '64GB'",
        "SELECT 1; SET enable_external_access = true",
        "SELECT 1; INSTALL httpfs",
        "SELECT 1; LOAD httpfs",
        "SELECT * FROM read_csv('http://127.0.0.1:1/a.csv')",
        "SELECT * FROM python_variable",
    ],
)
def test_it_reads_and_writes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: DuckDB, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("secret")
    _written(tmp_path / "elsewhere", "another's")
    python_variable = pa.table({"a": [1]})
    _rows(engine, _written(tmp_path / "run", "mine"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DamagedTraceError) as caught:
        engine.define("more", sql)
    assert "secret\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert python_variable.num_rows == 1


def test_tables_in_memory_are_queried_in_a_locked_engine(engine: DuckDB) -> None:
    engine.view("some", pa.table({"a": [1]}), pa.schema([("a", pa.int64())]))
    with pytest.raises(DamagedTraceError, match="disabled by configuration"):
        engine.define("more", "SELECT * FROM read_text('/etc/hostname')")
    assert engine.rows(ibis.table({"a": "int64"}, name="some")).to_pylist() == [{"a": 1}]


def test_a_value_that_a_query_cannot_work_with_is_an_error_of_the_run(
    tmp_path: Path, engine: DuckDB
) -> None:
    _rows(engine, _written(tmp_path / "run", "mine"))
    table = ibis.table(ibis.Schema.from_pyarrow(SCHEMA), name="verify")
    with pytest.raises(DamagedTraceError, match=rf"{tmp_path}/run: .*Conversion"):
        engine.rows(table.select(number=table.label.cast("int64")))


def test_a_damaged_file_is_named_as_the_user_does(tmp_path: Path, engine: DuckDB) -> None:
    path = _written(tmp_path / "run", "mine")
    _rows(engine, path)
    path.write_bytes(path.read_bytes()[:100])
    with closing(DuckDB()) as another, pytest.raises(DamagedTraceError, match=str(path)):
        _rows(another, path)


def test_too_large_a_value_is_one_line() -> None:
    with closing(DuckDB(memory_limit="24MiB")) as engine:
        engine.define("large", "SELECT repeat('x', 40000000) || i AS text FROM range(2) r(i)")
        with pytest.raises(DamagedTraceError, match="more than 24MiB of memory") as caught:
            engine.rows(ibis.table({"text": "string"}, name="large").order_by("text"))
    assert str(caught.value).isprintable()


def test_what_does_not_fit_into_memory_goes_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spills, here = tmp_path / "tmp", tmp_path / "here"
    for folder in (spills, here):
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spills))
    monkeypatch.chdir(here)
    engine = DuckDB(memory_limit="48MiB")
    engine.define("many", "SELECT md5(i::VARCHAR) AS text FROM range(4000000) r(i)")
    engine.keep("kept", ibis.table({"text": "string"}, name="many"))
    assert [path for path in spills.rglob("*.tmp") if path.stat().st_size]
    engine.close()
    assert not list(spills.iterdir()) and not list(here.iterdir())


def test_it_takes_the_cores_that_the_process_may_run_on(engine: DuckDB) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    engine.define("settings", "SELECT current_setting('threads')::BIGINT AS threads")
    (row,) = engine.rows(ibis.table({"threads": "int64"}, name="settings")).to_pylist()
    assert 1 <= row["threads"] <= usable_cores()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=30)
def test_a_constant_text_is_itself(text: str) -> None:
    with closing(DuckDB()) as engine:
        constant = engine.dialect.text(text)
        engine.define("some", f"SELECT {constant} AS text")
        assert engine.rows(ibis.table({"text": "string"}, name="some")).to_pylist() == [
            {"text": text}
        ]
