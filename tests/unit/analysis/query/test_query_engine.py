"""DuckDB as the engine of queries: locked, reading the given files and no others, beside other
users of DuckDB."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from driftscope.analysis.query.query_engine import (
    ABANDONED_S,
    DuckDB,
    Scratch,
    ViewFiles,
    usable_cores,
)
from driftscope.analysis.query.record_views import QUERIED, queried
from driftscope.analysis.query.row_filters import noted_updates, served_updates
from driftscope.errors import DamagedTraceError, UsageError
from driftscope.trace.status import DRAFTER, Status, WeightUpdate

SCHEMA = pa.schema([("accepted", pa.int64()), ("label", pa.string())])
COLUMNS = {"accepted": pa.int64(), "label": pa.string()}


@pytest.fixture
def engine() -> Iterator[DuckDB]:
    with closing(DuckDB()) as engine:
        yield engine


def _files(*paths: Path) -> ViewFiles:
    return ViewFiles(paths=paths, columns=COLUMNS, constant={})


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


RECORDED = sorted({name for record in QUERIED for name in queried(record).names})


def folder_names() -> SearchStrategy[str]:
    """Generate name=value as in a partitioned data set, patterns, quotes, and any other character,
    of a length that a file system takes."""
    partition = st.builds(
        "{}={}".format,
        st.sampled_from([*RECORDED, "batch", "context", "label", "any"]),
        st.sampled_from(["8", "3", "1", "abc", "", "2026-01-01", "null", "%20"]),
    )
    odd = st.text("ab*?[]{}!^\\'\"`=;:,$%~#@&|<> \t\n.-ü😀", min_size=1, max_size=12)
    anything = st.text(
        st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
    )
    return st.one_of(partition, odd, anything).filter(lambda name: name not in (".", ".."))


@settings(max_examples=20)
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
    engine = DuckDB(memory_limit="32MiB")
    engine.define("many", "SELECT md5(i::VARCHAR) AS text FROM range(1500000) r(i)")
    engine.keep("kept", ibis.table({"text": "string"}, name="many"))
    assert [path for path in spills.rglob("*.tmp") if path.stat().st_size]
    engine.close()
    assert not list(spills.iterdir()) and not list(here.iterdir())


def test_it_takes_the_cores_that_the_process_may_run_on(engine: DuckDB) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    engine.define("settings", "SELECT current_setting('threads')::BIGINT AS threads")
    (row,) = engine.rows(ibis.table({"threads": "int64"}, name="settings")).to_pylist()
    assert 1 <= row["threads"] <= usable_cores()


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
@example(["it's \\", '"', "`; --", "\n"])
@settings(max_examples=10)
def test_a_constant_text_is_itself(texts: list[str]) -> None:
    with closing(DuckDB()) as engine:
        constants = [f"{engine.dialect.text(text)} AS t{n}" for n, text in enumerate(texts)]
        engine.define("some", f"SELECT {', '.join(['1 AS one', *constants])}")
        names = {"one": "int64", **{f"t{n}": "string" for n in range(len(texts))}}
        (row,) = engine.rows(ibis.table(names, name="some")).to_pylist()
        assert [*row.values()][1:] == texts


CHILD = """
import sys
from driftscope.analysis.query.query_engine import Scratch
mine = Scratch()
print(mine.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def _child() -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return child, Path(child.stdout.readline().strip())


def _age(folder: Path) -> None:
    old = time.time() - 2 * ABANDONED_S
    os.utime(folder, (old, old))


def test_it_is_private_and_goes_when_it_is_closed(base: Path) -> None:
    scratch = Scratch()
    (scratch.path / "spill").write_text("rows")
    assert scratch.path.parent == base
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    scratch.close()
    scratch.close()
    assert not list(base.iterdir())


@pytest.mark.process
def test_it_goes_with_its_process(base: Path) -> None:
    child, folder = _child()
    assert folder.is_dir()
    child.communicate("")
    assert child.returncode == 0 and not folder.exists()


@pytest.mark.process
def test_that_of_a_killed_process_goes_with_the_next(base: Path) -> None:
    child, folder = _child()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    _age(folder)
    assert folder.is_dir()
    Scratch().close()
    assert not folder.exists()


@pytest.mark.process
def test_that_of_a_running_process_stays(base: Path) -> None:
    child, folder = _child()
    _age(folder)
    Scratch().close()
    assert folder.is_dir()
    child.communicate("")


def test_a_young_folder_and_what_is_no_folder_stay(base: Path) -> None:
    young, link = base / "driftscope-queries-young", base / "driftscope-queries-link"
    young.mkdir()
    link.symlink_to(base.parent)
    Scratch().close()
    assert young.is_dir() and link.is_symlink()


def test_a_tmpdir_that_is_a_pattern_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a[b]"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(UsageError, match="set TMPDIR to another"):
        Scratch()


def _status(source: str, *noted: WeightUpdate) -> Status:
    return Status(source=source, closed=True, flushed_s=1.0, weights=noted)


def test_what_is_noted_between_two_rounds_is_one_update() -> None:
    worker = _status(
        "worker0-1",
        WeightUpdate(time_s=1.0),  # before the first round: the run started with these
        WeightUpdate(time_s=10.0),
        WeightUpdate(time_s=12.0, model=DRAFTER),
        WeightUpdate(time_s=20.0),
    )
    core = _status("engine0-2", WeightUpdate(time_s=12.5, version="step-1"))
    other_rank = _status("worker1-3", WeightUpdate(time_s=10.2), WeightUpdate(time_s=15.0))
    noted = noted_updates([worker, core, other_rank])
    rounds = np.array([5.0, 9.0, 14.0, 16.0, 30.0])
    first, second = served_updates(noted, {0: rounds})[0]
    assert (first.number, first.time_s, first.version) == (1, 12.5, "step-1")
    assert first.models == (DRAFTER, "target") and first.name == "update 1 (step-1)"
    assert (second.number, second.time_s, second.name) == (2, 20.0, "update 2")


def test_each_replica_has_its_own_updates() -> None:
    statuses = [
        _status(f"worker0.dp{replica}-{replica}", WeightUpdate(time_s=10.0 + replica))
        for replica in range(2)
    ]
    served = served_updates(noted_updates(statuses), {0: np.array([1.0]), 1: np.array([])})
    assert [update.time_s for update in served[0]] == [10.0] and served[1] == []
