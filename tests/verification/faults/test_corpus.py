"""Small inputs that once failed, by reader: each gives its error line or its figures."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.odd_runs import ROOT

from driftscope.analysis.conditions import condition_of
from driftscope.boundary.text import shown
from driftscope.errors import DamagedTraceError, DriftscopeError
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import read_trace
from driftscope.workloads.suites.suite import load_suite
from verification.faults.cases import figures_of
from verification.faults.mutations import table_of, write_table

SOUND = ROOT / "tests/unit/trace/data/run-sealed"
KILLED = ROOT / "tests/unit/trace/data/run-killed"
STATUS = "status-core-2.json"


def _field(file: str, name: str, value: str) -> Callable[[Path], object]:
    """Return a reader of the sound run with another value of a field, given as JSON."""

    def read(folder: Path) -> object:
        run = Path(shutil.copytree(SOUND, folder / "run"))
        document = {**json.loads((run / file).read_text()), name: "@"}
        (run / file).write_text(json.dumps(document).replace('"@"', value))
        return read_trace(run)

    return read


def _suite(content: bytes) -> Callable[[Path], object]:
    return lambda folder: load_suite(str(_written(folder / "suite.yaml", content)))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _no_utf_8(folder: Path) -> object:
    run = Path(shutil.copytree(SOUND, folder / "run"))
    _written(run / "status-no-utf-8.json", b'{"source": "\xff\xfe"}')
    return read_trace(run)


def _condition(text: str) -> Callable[[Path], object]:
    return lambda _: condition_of(text)


REFUSED: dict[str, Callable[[Path], object]] = {
    "sink_tokens is 10000000000, not less than or equal to 4096": _field(
        MANIFEST, "sink_tokens", "10000000000"
    ),
    "k is 1000000000, not less than or equal to 1024": _field(MANIFEST, "k", "1000000000"),
    "schema version '²' is not a version": _field(MANIFEST, "schema_version", '"²"'),
    r"trace schema 9.\x1b[2J, but this driftscope reads": _field(
        MANIFEST, "schema_version", r'"9.\u001b[2J"'
    ),
    "created_s is null, not a number": _field(MANIFEST, "created_s", "1e999"),
    "rank is 18446744073709551616, not": _field(MANIFEST, "rank", str(2**64)),
    "flushed_s is null, not a number": _field(STATUS, "flushed_s", "1e999"),
    "created_s is null, not a number)": _field(MANIFEST, "created_s", "1" * 400),
    "conditions is 3, not a list": _field(MANIFEST, "workload", '{"conditions": 3}'),
    'ingested is "x", not an object': _field(MANIFEST, "workload", '{"ingested": "x"}'),
    "rows is [1, 2], not an object": _field(STATUS, "rows", "[1, 2]"),
    "revision is [1], not a whole number": _field(STATUS, "control", '{"revision": [1]}'),
    'budget is "x", not a number': _field(STATUS, "control", '{"budget": "x"}'),
    'dropped.queue_full is "many", not a whole number': _field(
        STATUS, "dropped", '{"queue_full": "many"}'
    ),
    "status-no-utf-8.json: not a readable status file": _no_utf_8,
    "suite.yaml: not readable as text": _suite(b"about: \xe9\nprompts: chat\n"),
    "suite.yaml: nested too deeply": _suite(b"prompts: " + b"[" * 10_000),
    "is a comment; conditions cannot have comments": _condition(
        "true); COPY (SELECT 42) TO 'pwn1.csv'; --"
    ),
    "is not a condition": _condition(" "),
    "is not possible: context is a number and": _condition("context = 'abc'"),
    "is a text, not true or false": _condition("'abc'"),
    "is a function or a type": _condition("CAST(request AS INT) > 1"),
    "'select' is not a column": _condition("k in (select * from range(10000000000))"),
    "at most 4096 are allowed": _condition(" or ".join(["k = 1"] * 1500)),
    "'read_text' is a function or a type": _condition("label = read_text('secret.csv')"),
}
"""Words of the error line -> what reads an input that gives it."""


@pytest.mark.parametrize("words", REFUSED)
def test_what_once_failed_is_one_line(words: str, tmp_path: Path) -> None:
    with pytest.raises(DriftscopeError) as caught:
        REFUSED[words](tmp_path)
    assert words in str(caught.value)
    assert "\n" not in shown(str(caught.value))


@pytest.mark.parametrize("folder", ["accepted=8", "replica=3", "request=abc", "drafted=1", "a*b"])
def test_a_folders_name_changes_no_figure(folder: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(SOUND, tmp_path / folder / "run"))
    shutil.copytree(KILLED, tmp_path / folder.replace("*", "X") / "other")
    assert figures_of(run) == figures_of(SOUND)


@pytest.mark.parametrize("name", [MANIFEST, "status-fifo.json", "draft-worker0-9-0000.parquet"])
def test_a_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(SOUND, tmp_path / "run"))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(DriftscopeError, match=name.partition(".")[0]):
        read_trace(run)


def test_offsets_beyond_a_streams_text_are_refused(tmp_path: Path) -> None:
    """Regression test for a segmentation fault."""
    run = Path(shutil.copytree(KILLED, tmp_path / "run"))
    path = next(run.glob("verify-*.arrows"))
    table = table_of(path)
    at = table.schema.get_field_index("request")
    numbers = [0, *[1 << 30] * (table.num_rows - 1), 1]
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in numbers))
    wrong = pa.Array.from_buffers(pa.string(), table.num_rows, [None, offsets, pa.py_buffer(b"a")])
    write_table(
        path, pa.concat_tables([table, table.set_column(at, table.schema.field(at), wrong)])
    )
    with pytest.raises(DamagedTraceError, match=path.name):
        read_trace(run)


def test_json_nested_a_hundred_thousand_deep(tmp_path: Path) -> None:
    for name in (MANIFEST, "status-deep.json"):
        run = Path(shutil.copytree(SOUND, tmp_path / name))
        (run / name).write_text("[" * 100_000)
        with pytest.raises(DamagedTraceError, match="nested deeper"):
            read_trace(run)
