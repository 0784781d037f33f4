"""A flipped bit is never another figure: it is found, named, and costs what it damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs import verify

from driftscope.errors import DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope.trace.segments import segment_path
from driftscope.trace.streams import END, intact_messages, read_stream, with_digest
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import RecordFiles

SOURCE = "worker0-1"
BATCH = pa.record_batch({"step": list(range(40)), "text": ["a", None] * 20})
STREAM = b"".join(
    bytes(part)
    for message in (BATCH.schema.serialize(), BATCH.serialize(), BATCH.serialize())
    for part in with_digest(message)
)


def flipped(content: bytes, at: int, bit: int) -> bytes:
    out = bytearray(content)
    out[at] ^= 1 << bit
    return bytes(out)


def test_any_arrow_reader_takes_a_stream_with_digests() -> None:
    table = pa.ipc.open_stream(STREAM + END).read_all()
    assert table == pa.Table.from_batches([BATCH, BATCH])


@given(at=st.integers(0, len(STREAM) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_of_a_stream_costs_its_message_and_no_other(at: int, bit: int) -> None:
    found = list(intact_messages(flipped(STREAM, at, bit) + END))
    assert sum(message is not None for message in found) == 2
    assert found.count(None) == 1


def open_stream(run: Path) -> Path:
    """A verify stream of four batches of ten rows that was never closed."""
    files = RecordFiles(run, SOURCE, 1 << 30)
    for batch in range(4):
        files.append([verify(0, 10 * batch + i, 0.0, i, 4, 1) for i in range(10)])
    return segment_path(run, "verify", SOURCE, 0)


def test_bit_rot_in_a_stream_is_named_and_the_rest_is_read(run: Path) -> None:
    path = open_stream(run)
    content = path.read_bytes()
    path.write_bytes(flipped(content, len(content) // 2, 3))
    trace = read_trace(run)
    assert trace.verify.num_rows == 30
    (problem,) = trace.problems
    assert problem.startswith(f"{path.name} is damaged after row ")


def test_a_torn_tail_is_no_bit_rot(run: Path) -> None:
    path = open_stream(run)
    path.write_bytes(path.read_bytes()[:-5])
    content = read_stream(path)
    assert (content.table.num_rows, content.torn, content.damaged) == (30, True, ())


def sealed_run(run: Path) -> Path:
    writer = TraceWriter(run, source=SOURCE)
    for i in range(200):
        writer.put(verify(0, i, 0.0, i, 4, i % 3))
    writer.close()
    return segment_path(run, "verify", SOURCE, 0).with_suffix(".parquet")


def test_bit_rot_in_a_sealed_file_is_named_by_column_and_rows(run: Path) -> None:
    path = sealed_run(run)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    last_byte = chunk.dictionary_page_offset or chunk.data_page_offset
    last_byte += chunk.total_compressed_size - 1
    path.write_bytes(flipped(path.read_bytes(), last_byte, 1))
    trace = read_trace(run)
    assert trace.verify.num_rows == 0
    where = f"column {chunk.path_in_schema}, rows 1 to 200"
    assert trace.problems == (f"{path.name} is damaged {where}: the file is left out",)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_bit_of_a_sealed_file_changes_a_row(run: Path, data: st.DataObject) -> None:
    path = segment_path(run, "verify", SOURCE, 0).with_suffix(".parquet")
    if not path.exists():
        sealed_run(run)
    whole, content = read_trace(run).verify, path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    try:
        path.write_bytes(flipped(content, at, data.draw(st.integers(0, 7))))
        trace = read_trace(run)
        assert trace.verify.num_rows == 0
        assert trace.problems
    except DriftscopeError as error:
        assert path.name in str(error)
    finally:
        path.write_bytes(content)
    assert read_trace(run).verify == whole


@pytest.mark.parametrize("name", ["../outside.parquet", "/etc/hostname", ""])
def test_a_digest_names_a_file_of_the_run_only(run: Path, name: str) -> None:
    sealed_run(run)
    status = run / f"status-{SOURCE}.json"
    text = status.read_text().replace(f"verify-{SOURCE}-0000.parquet", name)
    status.write_text(text)
    assert read_trace(run).problems == ()
