"""Columns as the records declare and the page tells them, values, texts and identifiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import typing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doc_pages import DOCS, field_docstrings
from support.runs import Spec, manifest, rows, write_run

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import BOUNDS, Trace, read_trace
from driftscope.trace.records import RECORDS, SCHEMA_VERSION, Floats, Ints, RequestRow, Row
from driftscope.trace.schema import (
    CONTENT,
    FIGURE,
    HASHED,
    IDENTIFIER,
    MARKED,
    Pseudonyms,
    array_of,
    conform,
    kind_of,
    lengths_of,
    lists_of,
    numbers_of,
    record_of,
    schema_of,
    to_batch,
    validity_of,
)
from driftscope.trace.segments import DERIVED_KEY, MEASURED, RELATIVE_ERROR, TIMES
from driftscope.trace.status import read_statuses
from driftscope.trace.texts import SHOWN_ANSWER, SHOWN_PROMPT, TEXTS, TextFile, read_texts
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import RecordFiles, create_run
from driftscope.vocabulary import DISTANCE_MASS

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


@given(st.lists(st.none() | st.lists(FLOAT32, max_size=4), max_size=9), st.integers(0, 3))
def test_lists_come_apart_and_together(values: list[list[float] | None], skipped: int) -> None:
    """Slices too, whose buffers begin before them."""
    built = array_of(values, pa.list_(pa.float32()))[skipped:]
    items, lengths, valid = numbers_of(built.flatten()), lengths_of(built), validity_of(built)
    assert lengths.tolist() == [len(value or ()) for value in values[skipped:]]
    assert lists_of(items, lengths, valid).equals(built)


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
from driftscope.trace.schema import Pseudonyms
from driftscope.trace.writer import TraceWriter, WriterOptions
options = WriterOptions(pseudonyms=Pseudonyms(b"key"))
writer = TraceWriter(Path(sys.argv[1]), source="worker0-1", options=options)
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


GOLDEN = Path(__file__).parent / "data" / "columns.json"


def _described(record: str) -> dict[str, str]:
    return {f.name: f"{f.type}{'' if f.nullable else ' not null'}" for f in schema_of(record)}


def test_columns_change_only_on_purpose() -> None:
    """A new column raises the minor version, a changed one the major: see SCHEMA_VERSION."""
    golden = json.loads(GOLDEN.read_text())
    assert golden == {
        "schema_version": SCHEMA_VERSION,
        "records": {record: _described(record) for record in RECORDS},
    }


def test_a_table_of_another_minor_version_gets_this_versions_columns() -> None:
    (draft,) = [row for row in rows(Spec(requests=1, rounds=0)) if record_of(row) == "draft"]
    table = pa.Table.from_batches([to_batch("draft", [draft])])
    newer = table.append_column("from_the_future", pa.array(["x"]))
    assert conform(newer, "draft").column_names == schema_of("draft").names
    assert conform(newer, "draft").to_pylist() == table.to_pylist()
    with pytest.raises(KeyError, match="entropy"):
        conform(table.drop_columns(["entropy"]), "draft")


KEY = bytes(range(16))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPEC = Spec(requests=5, labels=("chat",))
OF_REQUESTS = ("draft", "verify", "request")


def _rows() -> list[Row]:
    return [
        replace(row, traceparent=PARENT, prompt_digest="ab" * 8, session=f"of {row.request}")
        if isinstance(row, RequestRow)
        else row
        for row in rows(SPEC)
    ]


def _writer(run: Path, source: str, pseudonyms: Pseudonyms | None) -> TraceWriter:
    return TraceWriter(run, source=source, options=WriterOptions(pseudonyms=pseudonyms))


def _written(run: Path, pseudonyms: Pseudonyms | None) -> Trace:
    """A run of two processes, each with the records that it writes in vLLM."""
    create_run(run, manifest(SPEC))
    for source, records in (("worker0-1", ("draft", "step")), ("engine0-2", ("verify", "request"))):
        writer = _writer(run, source, pseudonyms)
        for row in _rows():
            if isinstance(row, tuple(RECORDS[record] for record in records)):
                assert writer.put(row)
        writer.close()
    return read_trace(run)


def test_no_mark_is_of_a_column_that_is_none() -> None:
    assert set(MARKED) <= {name for record in RECORDS for name in schema_of(record).names}


def test_columns_about_requests_and_texts_are_marked_so() -> None:
    assert kind_of("draft", "token_ids") == kind_of("client", "digest") == CONTENT
    assert kind_of("request", "prompt_digest") == kind_of("request", "conversation") == CONTENT
    for column in ("request", "label", "session", "pair", "traceparent"):
        assert kind_of("request", column) == IDENTIFIER
    assert kind_of("draft", "sink_mass") == kind_of("step", "recorded") == FIGURE


def test_a_new_text_is_no_figure_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("prompt", pa.string()), ("tokens", pa.list_(pa.int32()))])
    monkeypatch.setattr("driftscope.trace.schema.schema_of", lambda _: schema)
    for column in schema.names:
        with pytest.raises(KeyError):
            kind_of("draft", column)


def test_a_run_without_identifiers_has_hashes_in_every_process(tmp_path: Path) -> None:
    plain = _written(tmp_path / "plain", None)
    hashed = _written(tmp_path / "hashed", Pseudonyms(KEY))
    name = Pseudonyms(KEY).name
    for record in OF_REQUESTS:
        given = getattr(plain, record).column("request").to_pylist()
        kept = getattr(hashed, record).column("request").to_pylist()
        assert kept == [name(value) for value in given]
        assert "req-0" in given

    def values(trace: Trace, column: str) -> set[str | None]:
        return set(trace.request.column(column).to_pylist())

    assert values(plain, "traceparent") == {PARENT}
    assert values(hashed, "traceparent") == values(hashed, "pair") == {None}
    assert values(hashed, "label") == {"chat"}
    for column, different in (("prompt_digest", 1), ("session", SPEC.requests)):
        assert len(values(hashed, column)) == different
        assert not values(hashed, column) & values(plain, column)


@pytest.mark.parametrize("record", [*OF_REQUESTS, "step"])
def test_no_other_column_changes(record: str) -> None:
    batch = to_batch(record, [row for row in _rows() if type(row) is RECORDS[record]])
    kept = [name for name in batch.schema.names if name not in (*HASHED, "traceparent")]
    after = Pseudonyms(KEY).batch(batch)
    assert after.schema == batch.schema
    assert after.select(kept).equals(batch.select(kept))


@pytest.mark.parametrize("pseudonyms", [None, Pseudonyms(KEY)])
def test_an_error_quotes_no_id(tmp_path: Path, pseudonyms: Pseudonyms | None) -> None:
    writer = _writer(tmp_path / "run", "engine0-2", pseudonyms)
    writer.count_error("prefilling", KeyError("cmpl-of-alice"))
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    kept = "prefilling: KeyError" if pseudonyms else "prefilling: KeyError: 'cmpl-of-alice'"
    assert status.first_error == kept


def test_telemetry_is_given_no_identifiers(tmp_path: Path) -> None:
    """Spans are made of what the writer tells its listener."""
    heard: list[tuple[str, pa.RecordBatch]] = []
    writer = _writer(tmp_path / "run", "engine0-2", Pseudonyms(KEY))
    writer.subscribe(heard.extend)
    for row in _rows():
        writer.put(row)
    writer.close()
    told = repr([batch.to_pylist() for _, batch in heard])
    words = (Pseudonyms(KEY).name("req-0"), "req-0", PARENT)
    assert [word in told for word in words] == [True, False, False]


def test_a_hash_depends_on_the_key_and_the_id() -> None:
    one, other = Pseudonyms(KEY), Pseudonyms(KEY[::-1])
    assert one.name("a") == Pseudonyms(KEY).name("a") != other.name("a")
    assert one.name("a") != one.name("b")
    assert len(one.name("a")) == len(one.name("\ud800")) == 16


PAGE = (DOCS / "trace-format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS)
def test_every_column_has_a_meaning_and_every_null_a_reason(record: str) -> None:
    section = PAGE.split(f"\n## {record}\n")[1].split("\n## ")[0]
    meanings = field_docstrings(RECORDS[record])
    for field in schema_of(record):
        assert f"| `{field.name}` |" in section
        meaning, _, null = meanings[field.name].partition("None: ")
        assert len(meaning.split()) > 2, f"{record}.{field.name} has no meaning"
        assert bool(null) is field.nullable, f"{record}.{field.name}: what null means"


def test_sealed_files_are_as_the_page_says(tmp_path: Path) -> None:
    """Types, the timestamps, and which columns are left out."""
    assert f"Schema version {SCHEMA_VERSION}:" in PAGE
    assert all(f"`{name}`" in PAGE.partition("\n## draft\n")[0] for name in (*TIMES, *MEASURED))
    run = write_run(tmp_path / "run", Spec())
    left_out = set()
    for record in RECORDS:
        for path in run.glob(f"{record}-*.parquet"):
            file = pq.read_schema(path)
            derived = json.loads((file.metadata or {}).get(DERIVED_KEY, b"{}"))
            for field in schema_of(record):
                if field.name in derived:
                    assert field.name not in file.names
                    left_out.add(field.name)
                    continue
                kind = file.field(field.name).type
                wanted = pa.timestamp("us") if field.name in TIMES else field.type
                if pa.types.is_list(kind):
                    kind, wanted = kind.value_type, wanted.value_type
                assert kind == wanted
    assert left_out == {"fed_rms", "generated_mass"}
    restored = read_trace(run).draft
    assert restored.column("fed_rms").to_pylist() == restored.column("prenorm_rms").to_pylist()


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
        assert found == wanted or sealed
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


LINE: dict[str, Any] = {"response": "a", "prompt": "Why?", "answer": ["So", "."], "by_round": True}


def _read(folder: Path, *lines: bytes) -> tuple[tuple[str, tuple[str, ...]], str | None]:
    (folder / TEXTS).write_bytes(b"".join(line + b"\n" for line in lines))
    texts, problem = read_texts(folder, {"a"})
    return (texts["a"].prompt, texts["a"].answer), problem


def _line(**values: Any) -> bytes:
    return json.dumps({**LINE, **values}).encode()


def test_what_is_written_is_read_and_only_its_owner_can(tmp_path: Path) -> None:
    file = TextFile(tmp_path)
    file.put(LINE)
    file.put({**LINE, "response": "b"})
    file.close()
    assert (tmp_path / TEXTS).stat().st_mode & 0o777 == 0o600 and file.lost == 0
    texts, problem = read_texts(tmp_path, {"a"})
    assert set(texts) == {"a"} and problem is None
    assert texts["a"].answer == ("So", ".")


@pytest.mark.parametrize(
    ("values", "prompt", "answer"),
    [
        ({"by_round": False}, "Why?", ("So.",)),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, "user: Hi", ("So", ".")),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            'user: {"role": "user", "content": [{"type": "text", "text": "Hi"}]}',
            ("So", "."),
        ),
        (
            {"answer": ["\x1b[2J\u202e\x00", "a\r\nb\tc"]},
            "Why?",
            (r"\x1b[2J\u202e\x00", "a\nb   c"),
        ),
        ({"answer": ["\ud800"]}, "Why?", ("\ufffd",)),
        ({"answer": []}, "Why?", ()),
        ({"answer": [""] * 5_000}, "Why?", ("",) * SHOWN_ANSWER),
        (
            {"answer": ["x" * 1_000_000], "prompt": "y" * 1_000_000},
            "y" * (SHOWN_PROMPT // 2) + " [… 998,000 characters …] " + "y" * (SHOWN_PROMPT // 2),
            ("x" * SHOWN_ANSWER + " [… 996,000 more characters]",),
        ),
        (
            {"answer": ["x"] * 5_000},
            "Why?",
            (*["x"] * (SHOWN_ANSWER - 1), "x [… 1,000 more characters]"),
        ),
    ],
)
def test_texts_are_shown_safely_and_cut(
    tmp_path: Path, values: dict[str, Any], prompt: str, answer: tuple[str, ...]
) -> None:
    assert _read(tmp_path, _line(**values)) == ((prompt, answer), None)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff",
        b"{",
        b"7",
        b"[" * 100_000,
        b'{"response": "a"}',
        _line(response=["a"]),
        _line(response="a", answer=7),
        _line(response="a", answer=[7]),
        _line(response="a", prompt=[7]),
        _line(response="a", prompt=7),
    ],
)
def test_a_damaged_line_costs_that_line(tmp_path: Path, damaged: bytes) -> None:
    texts, problem = _read(tmp_path, damaged, _line())
    assert texts == ("Why?", ("So", "."))
    assert problem == f"{TEXTS} has 1 damaged line, which is left out"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for words in ("No such file", "symbolic link"):
        texts, problem = read_texts(tmp_path, {"a"})
        assert not texts and TEXTS in problem and words in problem
        (tmp_path / TEXTS).unlink(missing_ok=True)
        (tmp_path / TEXTS).symlink_to("/etc/passwd")


def test_a_lone_surrogate_costs_no_row() -> None:
    """A client can put one into a name, and all rows of a flush are encoded together."""
    assert array_of(["a\ud800b", None, "c"], pa.string()).to_pylist() == ["a?b", None, "c"]
