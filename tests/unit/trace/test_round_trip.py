"""Reading returns what was written: every record and value, whatever the number of flushes."""

from __future__ import annotations

import tempfile
import typing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs import Spec, manifest, rows

from driftscope.trace.manifest import MANIFEST, read_manifest
from driftscope.trace.reader import BOUNDS, Trace, read_trace
from driftscope.trace.records import RECORDS, Floats, Ints, Row
from driftscope.trace.schema import record_of
from driftscope.trace.segments import RELATIVE_ERROR
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import RecordFiles, create_run
from driftscope.vocabulary import DISTANCE_MASS

_INT64 = st.integers(-(2**63), 2**63 - 1)
_VALUES: dict[object, st.SearchStrategy[object]] = {
    int: _INT64,
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bool: st.booleans(),
    Floats: st.lists(st.floats(allow_nan=False, width=32), max_size=6),
    Ints: st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6),
}


def _row(cls: type[Row]) -> st.SearchStrategy[Row]:
    def values(name: str, hint: object) -> st.SearchStrategy[object]:
        if hint not in _VALUES:
            (inner,) = (a for a in typing.get_args(hint) if a is not type(None))
            return st.none() | values(name, inner)
        if name not in BOUNDS or hint not in (int, float):
            return _VALUES[hint]
        low, high = BOUNDS[name]  # readers refuse what lies beyond
        return st.integers(int(low), int(high)) if hint is int else st.floats(low, high)

    columns = {name: values(name, hint) for name, hint in typing.get_type_hints(cls).items()}
    if "execution" in columns:  # an empty one is read as the manifest's mode
        columns["execution"] = st.text(min_size=1, max_size=8)
    if DISTANCE_MASS in columns:  # readers refuse what does not sum to 1
        columns[DISTANCE_MASS] = st.none()
    return st.builds(cls, **columns)


ANY_ROW = st.one_of([_row(cls) for cls in RECORDS.values()])


def _expect(trace: Trace, put: list[Row], *, sealed: bool = False) -> None:
    for record in RECORDS:
        wanted = [asdict(row) for row in put if record_of(row) == record]
        found = getattr(trace, record).to_pylist()
        assert found == wanted or (sealed and len(found) == len(wanted))
        for row, want in zip(found, wanted, strict=True):
            assert row.keys() == want.keys()
            assert [n for n in row if not _within_precision(n, row[n], want[n])] == []


def _within_precision(name: str, found: Any, wanted: Any) -> bool:
    """Sealing rounds, see `driftscope.trace.segments`."""
    if isinstance(wanted, list):
        pairs = zip(found, wanted, strict=True)
        return all(_within_precision(name, one, other) for one, other in pairs)
    if name in ("time_s", "arrival_s") and found != wanted:
        return bool(abs(found - wanted) <= 1e-6)
    if not isinstance(wanted, float) or found == wanted:
        return bool(found == wanted)
    return bool(abs(found - wanted) <= RELATIVE_ERROR * abs(wanted) or name == "generated_mass")


@settings(max_examples=40, deadline=None)
@given(flushes=st.lists(st.lists(ANY_ROW, max_size=5), max_size=4))
def test_any_rows_come_back_as_they_were(flushes: list[list[Row]]) -> None:
    """While the files are open and after they are sealed."""
    put = [row for flush in flushes for row in flush]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        (run / MANIFEST).write_text(manifest(Spec()).to_json())
        files = RecordFiles(run, "worker0-1", 1 << 30)
        for flush in flushes:
            files.append(flush)
        _expect(read_trace(run), put)
        files.seal()
        _expect(read_trace(run), put, sealed=True)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_simulated_run_through_the_writer(run: Path, layers: int) -> None:
    put = list(rows(Spec(requests=5, rounds=3, layers=layers, labels=("a", None))))
    writer = TraceWriter(run, source="worker0-1")
    for row in put:
        assert writer.put(row)
    writer.close()
    trace = read_trace(run)
    for record in RECORDS:
        table = getattr(trace, record)
        assert table.num_rows == sum(record_of(row) == record for row in put)
    assert trace.problems == ()
    assert [s.rows for s in trace.statuses] == [
        {record: getattr(trace, record).num_rows for record in RECORDS if record != "client"}
    ]
    assert not list(run.glob("*.arrows"))


def test_rows_are_made_on_the_writers_thread(run: Path) -> None:
    import threading

    threads: list[str] = []

    def make() -> list[Row]:
        threads.append(threading.current_thread().name)
        return list(rows(Spec(requests=1)))

    writer = TraceWriter(run, source="worker0-1")
    writer.put(make)
    writer.close()
    assert threads == ["driftscope-writer"]
    assert read_trace(run).request.num_rows == 1


def test_rows_flushed_one_by_one_are_read_as_one_batch(tmp_path: Path) -> None:
    """Checks cost as much for a batch as for thousands of rows."""
    create_run(tmp_path / "run", manifest(Spec()))
    files = RecordFiles(tmp_path / "run", "worker0-1", max_bytes=1 << 30)
    for row in rows(Spec()):
        files.append([row])
    draft = read_trace(tmp_path / "run").draft
    assert draft.num_rows > 1
    assert draft.column("time_s").num_chunks == 1


def test_the_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    wanted = manifest(Spec(notes=("mind the gap", "é")))
    create_run(tmp_path / "deep" / "run", wanted)
    assert read_manifest(tmp_path / "deep" / "run") == wanted
    assert read_manifest(tmp_path / "deep" / "run").to_json() == wanted.to_json()
