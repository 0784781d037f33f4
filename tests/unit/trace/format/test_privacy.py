"""Which columns hold content and identifiers, and what a run without identifiers has instead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from support.runs import Spec, manifest, rows

from driftscope.analysis.query.record_views import open_run
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import RECORDS, RequestRow, Row
from driftscope.trace.schema import (
    CONTENT,
    FIGURE,
    HASHED,
    IDENTIFIER,
    KINDS,
    MARKED,
    Pseudonyms,
    kind_of,
    schema_of,
    to_batch,
)
from driftscope.trace.status import read_statuses
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run

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


def _written(run: Path, pseudonyms: Pseudonyms | None) -> Trace:
    """A run of two processes, each with the records that it writes in vLLM."""
    create_run(run, manifest(SPEC))
    for source, records in (("worker0-1", ("draft", "step")), ("engine0-2", ("verify", "request"))):
        writer = TraceWriter(run, source=source, options=WriterOptions(pseudonyms=pseudonyms))
        for row in _rows():
            if isinstance(row, tuple(RECORDS[record] for record in records)):
                assert writer.put(row)
        writer.close()
    return read_trace(run)


@pytest.mark.parametrize("record", RECORDS)
def test_every_column_is_marked(record: str) -> None:
    kinds = {name: kind_of(record, name) for name in schema_of(record).names}
    assert set(kinds.values()) <= set(KINDS)
    assert set(MARKED.get(record, {})) <= set(kinds), "a mark of a column that is none"


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
        assert kept == [name(each) for each in given]
        assert "req-0" in given
    assert set(plain.request.column("traceparent").to_pylist()) == {PARENT}
    assert set(hashed.request.column("traceparent").to_pylist()) == {None}
    assert set(hashed.request.column("pair").to_pylist()) == {None}
    for column, different in (("prompt_digest", 1), ("session", SPEC.requests)):
        names = set(hashed.request.column(column).to_pylist())
        assert len(names) == different
        assert not names & set(plain.request.column(column).to_pylist())
    assert set(hashed.request.column("label").to_pylist()) == {"chat"}


def test_its_figures_are_those_of_a_run_with_them(tmp_path: Path) -> None:
    """They need the chains, the rounds and the requests joined."""
    _written(tmp_path / "plain", None)
    _written(tmp_path / "hashed", Pseudonyms(KEY))
    plain, hashed = (summarise(open_run(tmp_path / run), "a") for run in ("plain", "hashed"))
    assert hashed.acceptance == plain.acceptance
    assert hashed.requests == plain.requests == SPEC.requests
    assert hashed.rounds == plain.rounds > 0


@pytest.mark.parametrize("record", [*OF_REQUESTS, "step"])
def test_no_other_column_changes(record: str) -> None:
    batch = to_batch(record, [row for row in _rows() if type(row) is RECORDS[record]])
    kept = [name for name in batch.schema.names if name not in (*HASHED, "traceparent")]
    after = Pseudonyms(KEY).batch(batch)
    assert after.schema == batch.schema
    assert after.select(kept).equals(batch.select(kept))


@pytest.mark.parametrize("pseudonyms", [None, Pseudonyms(KEY)])
def test_an_error_quotes_no_id(tmp_path: Path, pseudonyms: Pseudonyms | None) -> None:
    writer = TraceWriter(
        tmp_path / "run", source="engine0-2", options=WriterOptions(pseudonyms=pseudonyms)
    )
    writer.count_error("prefilling", KeyError("cmpl-of-alice"))
    writer.close()
    (status,) = read_statuses(tmp_path / "run")
    kept = "prefilling: KeyError" if pseudonyms else "prefilling: KeyError: 'cmpl-of-alice'"
    assert status.first_error == kept


def test_telemetry_is_given_no_identifiers(tmp_path: Path) -> None:
    """Spans are made of what the writer tells its listener."""
    heard: list[tuple[str, pa.RecordBatch]] = []
    writer = TraceWriter(
        tmp_path / "run", source="engine0-2", options=WriterOptions(pseudonyms=Pseudonyms(KEY))
    )
    writer.subscribe(heard.extend)
    for row in _rows():
        writer.put(row)
    writer.close()
    told = repr([batch.to_pylist() for _, batch in heard])
    assert Pseudonyms(KEY).name("req-0") in told
    assert "req-0" not in told
    assert PARENT not in told


_IN_A_SERVER = """
import sys
import pyarrow as pa
from driftscope.trace.schema import Pseudonyms
from driftscope.trace.schema import array_of
ids = array_of(["a", "b", "a"], pa.string())
print(Pseudonyms(b"key").batch(pa.RecordBatch.from_arrays([ids], names=["request"])).num_rows)
assert "pandas" not in sys.modules
"""


@pytest.mark.process
def test_pandas_stays_out_of_the_serving_process() -> None:
    """pyarrow imports it for what it takes from Python by itself."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_SERVER],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_a_hash_depends_on_the_key_and_the_id() -> None:
    one, other = Pseudonyms(KEY), Pseudonyms(KEY[::-1])
    assert one.name("a") == Pseudonyms(KEY).name("a") != other.name("a")
    assert one.name("a") != one.name("b")
    assert len(one.name("a")) == len(one.name("\ud800")) == 16
