"""Record files and status files: segments, their sizes, and statuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.runs import Spec, noisy_rows, rows, verify, write_rows, write_run

from driftscope.errors import DamagedTraceError, DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope.trace.records import DraftRow
from driftscope.trace.schema import to_batch
from driftscope.trace.segments import (
    DERIVED_KEY,
    END,
    RELATIVE_ERROR,
    VERSION_KEY,
    compact,
    intact_messages,
    restore,
    rounded,
    segment_path,
    segments,
    with_digest,
)
from driftscope.trace.status import (
    StartFault,
    Status,
    leave_fault,
    read_faults,
    read_statuses,
    remove_faults,
    status_path,
)
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import RecordFiles
from driftscope_probes.settings import DEFAULT_DISTANCE_EVERY

K = 3
FLOAT32 = st.floats(width=32)
STATES = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")
DERIVED = {"fed_rms", "in_rms", "generated_mass"}


def _table(chains: list[dict[str, Any]]) -> pa.Table:
    """A draft table with these values in its rows."""
    row = next(r for r in rows(Spec(k=K, conditional=(0.5,) * K)) if isinstance(r, DraftRow))
    plain = pa.Table.from_batches([to_batch("draft", [row])]).to_pylist()[0]
    schema = to_batch("draft", [row]).schema
    return pa.Table.from_pylist([{**plain, **chain} for chain in chains], schema)


def _left_out(table: pa.Table) -> set[str]:
    return set(table.column_names) - set(compact(table).column_names)


@st.composite
def _lists(draw: st.DrawFn) -> list[list[float] | None]:
    chain = st.none() | st.lists(FLOAT32, max_size=4)
    return draw(st.lists(chain, min_size=1, max_size=6))


@given(arrays(np.float32, st.integers(0, 40), elements=FLOAT32))
def test_rounding_stays_within_its_bound(values: np.ndarray) -> None:
    for given_ in (values, values.astype(np.float64)):
        near = rounded(given_)
        finite = np.isfinite(given_)
        wide, exact = near[finite].astype(np.float64), given_[finite].astype(np.float64)
        assert (np.abs(wide - exact) <= RELATIVE_ERROR * np.abs(exact)).all()
        assert np.array_equal(near[~finite], given_[~finite], equal_nan=True)
        assert np.array_equal(rounded(near), near, equal_nan=True)


def test_rounding_leaves_what_has_few_bits() -> None:
    exact = np.array([0.0, -0.0, 1.0, 0.5, -3.25, 1e-40, np.finfo(np.float32).max], np.float32)
    assert rounded(exact).tobytes() == exact.tobytes()


@given(lists=_lists(), fc=st.none() | FLOAT32, state=st.sampled_from(STATES[1:3]))
@example(lists=[[0.0]], fc=3.4028106884672383e38, state="prenorm_rms")  # to infinity, as a float32
def test_states_that_follow_are_left_out_and_come_back(
    lists: list[list[float] | None], fc: float | None, state: str
) -> None:
    """Nulls, empty lists, NaN and infinities among them."""
    other = "postnorm_rms" if state == "prenorm_rms" else "prenorm_rms"
    fc = float("nan") if fc is None else fc
    chains = [
        {
            state: fed,
            other: [1.5],
            "fed_rms": fed,
            "fc_rms": fc,
            "in_rms": None if fed is None else [fc, *fed[:-1]] if fed else [],
        }
        for fed in lists
    ]
    table = _table(chains)
    packed = compact(table)
    if not np.isnan(fc):  # one NaN need not have another's bits
        assert {"fed_rms", "in_rms"} <= _left_out(table)
    _same_as_rounded(restore(packed), table)


@given(
    lists=st.lists(st.lists(st.floats(0, 1, width=32), min_size=K, max_size=K), max_size=5),
    apart=_lists(),
)
def test_states_that_do_not_follow_are_kept(
    lists: list[list[float]], apart: list[list[float] | None]
) -> None:
    chains = [
        {"prenorm_rms": fed, "postnorm_rms": None, "fed_rms": fed, "in_rms": fed, "fc_rms": 9.0}
        for fed in lists
    ]
    chains += [{"prenorm_rms": a, "postnorm_rms": [7.0], "fed_rms": [0.25]} for a in apart]
    table = _table(chains)
    _same_as_rounded(restore(compact(table)), table)


@given(st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 4), min_size=1, max_size=5), st.booleans())
def test_the_complement_comes_back(parts: list[tuple[float, ...]], hidden: bool) -> None:
    chains = []
    for part in parts:
        sink, prompt, own, _ = np.array(part) / max(sum(part), 1e-9)
        chains.append(
            {
                "sink_mass": [float("nan") if hidden else sink] * K,
                "prompt_mass": [prompt] * K,
                "self_mass": [own] * K,
                "null_mass": None,
                "generated_mass": [1.0 - prompt - own - (0.0 if hidden else sink)] * K,
            }
        )
    table = _table(chains)
    assert "generated_mass" in _left_out(table)
    assert restore(compact(table).slice(0, 0)).num_rows == 0, "a request without recorded chains"
    back = restore(compact(table))
    found, wanted = (t.column("generated_mass").to_pylist() for t in (back, table))
    assert np.abs(np.array(found) - np.array(wanted)).max() <= 1e-5
    assert (np.array(found) >= 0).all()


@pytest.mark.parametrize(
    "change",
    [
        {"generated_mass": [0.5, 0.5, 0.5 + 1e-4]},
        {"generated_mass": [0.5, 0.5, float("nan")]},
        {"generated_mass": None},
        {"null_mass": [0.0, 0.0, 0.0]},
        {"sink_mass": [0.5]},
    ],
)
def test_what_is_no_complement_is_kept(change: dict[str, Any]) -> None:
    whole = {
        "sink_mass": [0.5] * K,
        "prompt_mass": [0.0] * K,
        "self_mass": [0.0] * K,
        "generated_mass": [0.5] * K,
    }
    table = _table([whole, {**whole, **change}])
    assert "generated_mass" not in _left_out(table)
    _same_as_rounded(restore(compact(table)), table, ["generated_mass"])


def test_a_real_run_leaves_out_three_lists_and_reads_alike(run: Path) -> None:
    files = RecordFiles(run, "worker0-1", 1 << 30)
    files.append(noisy_rows(300))
    streamed = read_trace(run)
    files.seal()
    sealed = read_trace(run)
    path = segment_path(run, "draft", "worker0-1", 0).with_suffix(".parquet")
    assert set(streamed.draft.column_names) - set(pq.read_schema(path).names) == DERIVED
    for record in ("draft", "verify", "step"):
        before, after = getattr(streamed, record), getattr(sealed, record)
        assert before.schema == after.schema
        for name in before.column_names:
            _close(name, after.column(name), before.column(name))


def test_metadata_that_the_columns_do_not_fit(run: Path) -> None:
    write_rows(run, SOURCE, noisy_rows(3))
    path = segment_path(run, "draft", SOURCE, 0).with_suffix(".parquet")
    table = pq.read_table(path)
    for derived in (b'{"fed_rms": "x"}', b"{", b"[]", b'{"step": "x"}', b'{"in_rms": "fed_rms"}'):
        pq.write_table(
            table.replace_schema_metadata({VERSION_KEY: b"3.0", DERIVED_KEY: derived}), path
        )
        with pytest.raises(DamagedTraceError, match="cannot be derived from the others"):
            read_trace(run)


def _same_as_rounded(found: pa.Table, stream: pa.Table, names: Sequence[str] = STATES) -> None:
    for name in names:
        lists = (table.column(name).to_pylist() for table in (found, stream))
        for one, other in zip(*lists, strict=True):
            assert (one is None) == (other is None), name
            if other is not None:
                wanted = rounded(np.array(other, np.float32))
                assert np.array_equal(np.array(one, np.float32), wanted, equal_nan=True), name


def _close(name: str, found: pa.ChunkedArray, wanted: pa.ChunkedArray) -> None:
    assert found.is_valid().equals(wanted.is_valid()), name
    if not pa.types.is_floating(found.type) and not pa.types.is_list(found.type):
        assert found.equals(wanted), name
        return
    if pa.types.is_list(found.type):
        found, wanted = (column.combine_chunks().flatten() for column in (found, wanted))
    one, other = (np.asarray(column.drop_null()) for column in (found, wanted))
    absolute = {"time_s": 1e-6, "generated_mass": 1e-5}.get(name, 0.0)
    assert np.allclose(one, other, rtol=RELATIVE_ERROR, atol=absolute, equal_nan=True), name


@pytest.mark.parametrize("column", [pa.array(["x"]), pa.array([1.5]), pa.nulls(1)])
def test_a_column_of_another_type_is_named(column: pa.Array) -> None:
    """It once was an AttributeError."""
    table = pa.table({"prenorm_rms": column})
    with pytest.raises(ValueError, match="prenorm_rms holds"):
        restore(table.replace_schema_metadata({DERIVED_KEY: b'{"fed_rms": "prenorm_rms"}'}))


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


def sealed_run(run: Path) -> Path:
    writer = TraceWriter(run, source=SOURCE)
    for i in range(200):
        writer.put(verify(0, i, 0.0, i, 4, i % 3))
    writer.close()
    return segment_path(run, "verify", SOURCE, 0).with_suffix(".parquet")


def test_a_sealed_file_with_bit_rot_is_left_out(run: Path) -> None:
    path = sealed_run(run)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    last_byte = chunk.dictionary_page_offset or chunk.data_page_offset
    last_byte += chunk.total_compressed_size - 1
    path.write_bytes(flipped(path.read_bytes(), last_byte, 1))
    trace = read_trace(run)
    assert trace.verify.num_rows == 0
    assert trace.problems == (f"{path.name} is damaged: the file is left out",)


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


FULL = Status(
    source="worker0-7",
    closed=True,
    flushed_s=1_750_000_000.25,
    rows={"draft": 3, "step": 9},
    dropped={"queue_full": 2, "disk_limit": 1},
    errors={"attention": 4, "write": 1},
    first_error="attention: ValueError: no",
    probe_s=0.125,
)


def _write(run: Path, status: Status) -> None:
    status_path(run, status.source).write_text(status.to_json())


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    plain = Status(source="core-1", closed=False, flushed_s=0.0)
    for status in (FULL, plain):
        _write(tmp_path, status)
    assert read_statuses(tmp_path) == (plain, FULL)
    newer = {**json.loads(FULL.to_json()), "from_the_future": 1}
    status_path(tmp_path, FULL.source).write_text(json.dumps(newer))
    assert read_statuses(tmp_path) == (plain, FULL)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"source": "x"}', "\udcff"])
def test_a_damaged_one_is_named(tmp_path: Path, text: str) -> None:
    path = status_path(tmp_path, "worker0-7")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DamagedTraceError, match=r"status-worker0-7\.json: not a readable status"):
        read_statuses(tmp_path)


def test_an_error_of_any_length_leaves_the_status_readable(run: Path) -> None:
    writer = TraceWriter(run, source="worker0-1")
    writer.count_error("verify", ValueError("x" * 1_000_000))
    writer.close()
    (status,) = read_statuses(run)
    assert str(status.first_error).startswith("verify: ValueError: xxx")
    assert len(str(status.first_error)) < 3000


FAULT = StartFault(
    kind="drafter", reason="no such drafter", source="worker0-7", start="abc", time_s=1.0
)


def test_it_is_read_as_it_was_left(tmp_path: Path) -> None:
    leave_fault(tmp_path / "run", FAULT)
    (fault,) = read_faults(tmp_path / "run")
    assert (fault.kind, fault.reason, fault.source) == (FAULT.kind, FAULT.reason, FAULT.source)
    assert fault.time_s > FAULT.time_s
    remove_faults(tmp_path / "run")
    assert read_faults(tmp_path / "run") == ()
    assert read_faults(tmp_path / "nothing") == ()


def test_one_process_of_a_run_that_others_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    leave_fault(run, FAULT)
    assert "worker0-7 recorded nothing: no such drafter" in read_trace(run).problems


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind": "no", "reason": "", "source": "", "start": ""}', '{"kind": 1}'],
)
def test_a_file_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "fault-worker0-1.json").write_text(text)
    assert read_faults(tmp_path) == ()


SEALED_BYTES_PER_ROUND = 160
"""With K = 7, one chain per step, without masses by distance: the draft, verify and step files
together."""
SEALED_BYTES_WITH_DISTANCES = 190
"""Bytes of a round with K = 8 and masses by distance at the default interval."""
ROUNDS = 4000
RECORDS = ("draft", "verify", "step")


@pytest.mark.parametrize("norm_output", [True, False], ids=["EAGLE-3.1", "EAGLE-3"])
@pytest.mark.parametrize(
    ("k", "distance_every", "most"),
    [
        (7, 0, SEALED_BYTES_PER_ROUND),
        (8, DEFAULT_DISTANCE_EVERY, SEALED_BYTES_WITH_DISTANCES),
    ],
)
def test_a_sealed_round_is_small(
    tmp_path: Path, norm_output: bool, k: int, distance_every: int, most: float
) -> None:
    content = noisy_rows(ROUNDS, k, norm_output=norm_output, distance_every=distance_every)
    write_rows(tmp_path, SOURCE, content)
    sizes = [p.stat().st_size for record in RECORDS for p in segments(tmp_path, record)]
    assert sum(sizes) / ROUNDS <= most
