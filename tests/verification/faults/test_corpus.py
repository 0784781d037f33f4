"""Small inputs that once failed, by reader: each gives its error line or its figures."""

from __future__ import annotations

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
from driftscope.trace.segments import StreamFile
from driftscope.workloads.suites.suite import load_suite
from verification.faults.cases import figures_of

CORPUS = Path(__file__).parent / "corpus"
SOUND = ROOT / "tests/unit/trace/data/run-sealed"
KILLED = ROOT / "tests/unit/trace/data/run-killed"
SMALL_BYTES = 20 << 10
REFUSED = {
    "manifests/endless-sinks.json": "sink_tokens is 10000000000, not less than or equal to 4096",
    "manifests/endless-k.json": "k is 1000000000, not less than or equal to 1024",
    "manifests/superscript-version.json": "schema version '²' is not a version",
    "manifests/escape-in-version.json": r"trace schema 9.\x1b[2J, but this driftscope reads",
    "manifests/infinite-time.json": "created_s is null, not a number",
    "manifests/overflowing-rank.json": "rank is 18446744073709551616, not",
    "statuses/infinite-flush.json": "not a readable status file",
    "statuses/rows-as-list.json": "rows is [1, 2], not an object",
    "statuses/words-as-counts.json": 'dropped.queue_full is "many", not a whole number',
    "statuses/no-utf-8.json": "not a readable status file",
    "suites/latin-1.yaml": "latin-1.yaml: not readable as text",
    "suites/deep.yaml": "deep.yaml: nested too deeply",
    "conditions/copy.txt": "is a comment; conditions cannot have comments",
    "conditions/blank.txt": "is not a condition",
    "conditions/text-as-number.txt": "is not possible: context is a number and",
    "conditions/lone-text.txt": "is a text, not true or false",
    "conditions/cast.txt": "is a function or a type",
    "conditions/range.txt": "'select' is not a column",
    "conditions/many-ors.txt": "at most 4096 are allowed",
    "conditions/read-text.txt": "is a function or a type",
}
"""Expected words in the error line for each file."""


def _read_manifest(path: Path, run: Path) -> None:
    shutil.copytree(SOUND, run)
    shutil.copy(path, run / MANIFEST)
    read_trace(run)


def _read_status(path: Path, run: Path) -> None:
    shutil.copytree(SOUND, run)
    shutil.copy(path, run / f"status-{path.name}")
    read_trace(run)


READERS: dict[str, Callable[[Path, Path], object]] = {
    "manifests": _read_manifest,
    "statuses": _read_status,
    "suites": lambda path, _: load_suite(str(path)),
    "conditions": lambda path, _: condition_of(path.read_text(encoding="utf-8")),
}


def test_every_file_is_small_and_known() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.relative_to(CORPUS).as_posix() for path in files} == REFUSED.keys()
    assert max(path.stat().st_size for path in files) < SMALL_BYTES


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_once_failed_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(DriftscopeError) as caught:
        READERS[Path(name).parts[0]](CORPUS / name, tmp_path / "run")
    assert REFUSED[name] in str(caught.value)
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
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all()
    at = table.schema.get_field_index("request")
    numbers = [0, *[1 << 30] * (table.num_rows - 1), 1]
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in numbers))
    wrong = pa.Array.from_buffers(pa.string(), table.num_rows, [None, offsets, pa.py_buffer(b"a")])
    broken = table.set_column(at, table.schema.field(at), wrong)
    path.unlink()
    stream = StreamFile(path, table.schema)
    for part in (table, broken):
        stream.append(part.combine_chunks().to_batches()[0])
    stream.close()
    with pytest.raises(DamagedTraceError, match=path.name):
        read_trace(run)


def test_json_nested_a_hundred_thousand_deep(tmp_path: Path) -> None:
    for name in (MANIFEST, "status-deep.json"):
        run = Path(shutil.copytree(SOUND, tmp_path / name))
        (run / name).write_text("[" * 100_000)
        with pytest.raises(DamagedTraceError, match="nested deeper"):
            read_trace(run)
