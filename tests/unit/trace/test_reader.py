"""A run is read as far as it is whole and known; what no recorder writes is refused in a line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command import analyze_json, assert_fails
from support.odd_runs import ROOT
from support.runs import Spec, manifest, rows, verify, write_rows, write_run
from support.waiting import no_hang, until

from driftscope.analysis.query.record_views import Tables, open_run
from driftscope.analysis.query.record_views import table as view
from driftscope.errors import (
    EXIT_NO_DATA,
    DamagedTraceError,
    DriftscopeError,
    SchemaVersionError,
)
from driftscope.json_report import to_json
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.manifest import MANIFEST, Manifest, read_manifest
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import DraftRow, Row, StepRow, edges_of, longest_of, reach_of
from driftscope.trace.segments import VERSION_KEY, StreamFile, seal, segment_path, segments
from driftscope.trace.writer_files import RecordFiles

TRACES = ROOT / "reports/gallery/traces"
RECORDED, OTHER = TRACES / "smollm2-eagle3", TRACES / "smollm2-eagle3.1"
SPEC = Spec(requests=3, rounds=2, layers=2, windowed=(1,), distance_every=2)
BINS = len(edges_of(SPEC.k))
EVERY_READER = pytest.mark.parametrize(
    ("read", "closed"), [(read_trace, False), (read_trace, True), (open_run, True)]
)
Change = Callable[[np.ndarray], None]


@pytest.mark.parametrize(
    ("k", "edges"),
    [
        (1, (0, 1, 2, 4, 8)),
        (3, (0, 1, 2, 3, 6, 12, 24)),
        (8, (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
    ],
)
def test_distances_a_chain_can_reach_are_single_and_then_bins_double(
    k: int, edges: tuple[int, ...]
) -> None:
    assert edges_of(k) == edges
    assert len(edges) == k + 4
    assert longest_of(len(edges)) == k
    assert reach_of(len(edges)) == edges[-1] == 8 * k


def _written(run: Path, change: Change | None = None, *, closed: bool = True) -> Path:
    """Write a run whose masses by distance, [k, layers, bins], have gone through `change`."""
    content: list[Row] = []
    for row in rows(SPEC):
        if change and isinstance(row, DraftRow) and row.distance_mass is not None:
            masses = np.array(row.distance_mass).reshape(SPEC.k, SPEC.layers, BINS)
            change(masses)
            row = replace(row, distance_mass=masses.ravel().tolist())
        content.append(row)
    return write_run(run, SPEC, content, closed=closed)


@EVERY_READER
def test_masses_by_distance_are_read_where_they_were_recorded(
    tmp_path: Path, read: Callable[[Path], object], closed: bool
) -> None:
    run = _written(tmp_path / "run", closed=closed)
    read(run)
    trace = read_trace(run)
    assert (trace.manifest.distance_every, trace.manifest.distance_edges) == (2, edges_of(SPEC.k))
    lists = trace.draft.column("distance_mass").to_pylist()
    carries = [masses is not None for masses in lists]
    assert carries == [step % 2 == 1 for step in trace.draft.column("step").to_pylist()]
    recorded = np.array([masses for masses in lists if masses is not None])
    assert recorded.shape[1] == SPEC.k * SPEC.layers * BINS


def _add(*places: tuple[tuple[int, int, int], float]) -> Change:
    def change(masses: np.ndarray) -> None:
        for place, mass in places:
            masses[place] += mass

    return change


@EVERY_READER
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_add(((1, 0, 2), 0.01)), "sum to a number other than 1"),
        (_add(((0, 1, 0), -0.3), ((0, 1, 1), 0.3)), "distance_mass is "),
    ],
    ids=["too much", "negative"],
)
def test_masses_that_no_recorder_writes_are_refused(
    tmp_path: Path, read: Callable[[Path], object], closed: bool, change: Change, words: str
) -> None:
    with pytest.raises(DamagedTraceError, match=words):
        read(_written(tmp_path / "run", change, closed=closed))


@EVERY_READER
def test_another_number_of_bins_than_the_manifest_states_is_refused(
    tmp_path: Path, read: Callable[[Path], object], closed: bool
) -> None:
    run = _written(tmp_path / "run", closed=closed)
    other = replace(manifest(SPEC), distance_edges=edges_of(SPEC.k + 1))
    (run / MANIFEST).write_text(other.to_json())
    with pytest.raises(DamagedTraceError, match=f"times {BINS + 1} bins long"):
        read(run)


@pytest.mark.parametrize(
    ("edges", "every"), [((0, 1, 2), 1), ((0, 1, 2, 4, 8), 0), ((), 8), ((0, 2, 1, 4, 8), 1)]
)
def test_a_manifest_with_impossible_bins_is_refused(
    tmp_path: Path, edges: tuple[int, ...], every: int
) -> None:
    raw = json.loads(manifest(SPEC).to_json())
    raw |= {"distance_edges": edges, "distance_every": every}
    (tmp_path / MANIFEST).write_text(json.dumps(raw))
    with pytest.raises(DamagedTraceError, match="distance_e"):
        read_manifest(tmp_path)


@EVERY_READER
def test_a_step_that_no_hook_watched_ran_in_the_manifests_mode(
    tmp_path: Path, read: Callable[[Path], Trace | Tables], closed: bool
) -> None:
    steps = [row for row in rows(SPEC) if isinstance(row, StepRow)]
    content = [replace(row, execution="" if row.step % 2 else "eager") for row in steps]
    spec = replace(SPEC, mode="full graphs")
    found = read(write_run(tmp_path / "run", spec, content, closed=closed))
    table = found.engine.rows(view("step")) if isinstance(found, Tables) else found.step
    ran = dict(
        zip(*(table.column(name).to_pylist() for name in ("step", "execution")), strict=True)
    )
    assert ran == {row.step: "full" if row.step % 2 else "eager" for row in steps}


SOURCE = "worker0-1"


def _fails(error: type[DriftscopeError], run: Path, *words: str) -> None:
    """Reading `run` raises `error` with one line that names it."""
    with pytest.raises(error) as caught:
        read_trace(run)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(run), *words):
        assert word in message


def _in_batches(run: Path, per_batch: int, batches: int) -> tuple[bytes, list[int]]:
    """An open verify stream: its bytes, and its size after its n-th batch."""
    files, sizes = RecordFiles(run, SOURCE, 1 << 30), []
    path = segment_path(run, "verify", SOURCE, 0)
    for batch in range(batches):
        files.append([verify(0, batch * per_batch + i, 0.0, i, 4, 1) for i in range(per_batch)])
        sizes.append(path.stat().st_size)
    content = path.read_bytes()
    files.seal()
    path.with_suffix(".parquet").unlink()
    return content, sizes


def _sealed(run: Path, record: str = "verify") -> Path:
    write_rows(run, SOURCE, rows(Spec(requests=2)))
    return segment_path(run, record, SOURCE, 0).with_suffix(".parquet")


def _readable_rows(run: Path, record: str) -> int:
    """0 until the record's first batch is on disk: each record has a file of its own."""
    return getattr(read_trace(run), record).num_rows if segments(run, record) else 0


def test_kill_9_costs_at_most_the_last_second(
    run: Path,
    child: Callable[..., subprocess.Popen[str]],
) -> None:
    process, own_records = child("endless", run), ("draft", "verify", "step")
    with process:
        until(lambda: all(_readable_rows(run, record) > 200 for record in own_records))
        killed_s = time.time()
        os.kill(process.pid, signal.SIGKILL)
    trace = read_trace(run)
    steps, times = (trace.verify.column(name).to_pylist() for name in ("step", "time_s"))
    # The simulated rows among them are of another time.
    own = [(step, at) for step, at in zip(steps, times, strict=True) if at > killed_s - 600]
    assert [step for step, _ in own] == list(range(1, len(own) + 1))
    assert killed_s - own[-1][1] < 1.0
    assert trace.draft.num_rows > 0 and trace.step.num_rows > 0
    (problem,) = [p for p in trace.problems if "was killed" in p]
    assert "child is still recording or was killed: rows after its last flush (20" in problem


def test_a_stream_cut_anywhere_is_read_up_to_its_last_whole_batch(run: Path) -> None:
    content, sizes = _in_batches(run, per_batch=5, batches=3)
    path = segment_path(run, "verify", SOURCE, 0)
    header = 8 + int.from_bytes(content[4:8], "little")
    near = {size + offset for size in (header, *sizes) for offset in (-8, -1, 0, 1, 4, 7, 8, 9)}
    for cut in sorted({*range(0, len(content), 41), *near} & set(range(len(content) + 1))):
        path.write_bytes(content[:cut])
        trace = read_trace(run)
        whole = sum(size <= cut for size in sizes)
        assert trace.verify.column("step").to_pylist() == list(range(5 * whole)), cut
        # Up to the 8 bytes that announce a batch, a cut stream is a stream that ended there.
        if cut > 0 and min(cut - size for size in (0, header, *sizes) if size <= cut) > 8:
            (problem,) = trace.problems
            assert problem.startswith(f"{path.name}: ends after {5 * whole} rows; the rows")


@pytest.mark.parametrize("keep", [0, 1, 4, 100, -100, -8, -1])
def test_a_cut_parquet_file(run: Path, keep: int) -> None:
    path = _sealed(run)
    path.write_bytes(path.read_bytes()[:keep])
    _fails(DamagedTraceError, run, path.name, "not a readable Parquet file", "move it away")


def test_a_stream_that_lacks_its_end_mark_can_be_sealed_by_hand(run: Path) -> None:
    content, _ = _in_batches(run, per_batch=5, batches=2)
    path = segment_path(run, "verify", SOURCE, 0)
    path.write_bytes(content)
    assert seal(path) == path.with_suffix(".parquet")
    assert read_trace(run).verify.num_rows == 10
    assert not path.exists()


def _with_manifest(run: Path, **changes: object) -> None:
    raw = json.loads(manifest(Spec()).to_json())
    (run / MANIFEST).write_text(json.dumps({**raw, **changes}))


@pytest.mark.parametrize(
    ("version", "words"), [("4.0", "upgrade driftscope"), ("2.6", "record the run again")]
)
def test_another_major_version_of_the_run(run: Path, version: str, words: str) -> None:
    _with_manifest(run, schema_version=version)
    wanted = (f"trace schema {version}", "this driftscope reads 3.x only", words)
    _fails(SchemaVersionError, run, *wanted)


@pytest.mark.parametrize("suffix", [".arrows", ".parquet"])
def test_a_newer_major_version_of_a_segment(run: Path, suffix: str) -> None:
    path = segment_path(run, "verify", SOURCE, 0).with_suffix(suffix)
    table = pa.table({"step": [1]}).replace_schema_metadata({VERSION_KEY: b"10.2"})
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        path.unlink(missing_ok=True)
        StreamFile(path, table.schema).close()
    _fails(SchemaVersionError, run, path.name, "trace schema 10.2", "upgrade driftscope")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"7", b"{}", b"\xff\xfe", b'"schema_version"']
)
def test_a_manifest_that_is_none(run: Path, content: bytes) -> None:
    (run / MANIFEST).write_bytes(content)
    _fails(DamagedTraceError, run, MANIFEST, "not a readable manifest")


@pytest.mark.parametrize("field", sorted(json.loads(manifest(Spec()).to_json())))
def test_a_manifest_that_lacks_a_field(run: Path, field: str) -> None:
    raw = json.loads(manifest(Spec()).to_json())
    del raw[field]
    (run / MANIFEST).write_text(json.dumps(raw))
    try:
        read_manifest(run)
    except DamagedTraceError:
        _fails(DamagedTraceError, run, field)
    else:
        optional = {
            f.name for f in fields(Manifest) if (f.default, f.default_factory) != (MISSING,) * 2
        }
        assert field in optional


WRONG: dict[str, tuple[object, ...]] = {
    "target": (None, "tiny"),
    "drafter": ([1],),
    "notes": (3, [3]),
    "aux_layers": (None,),
    "k": ("7", 7.5, True, None),
    "mode": (1,),
    "samples_wrongly": (1,),
    "every": ("2",),
    "budget": ("small",),
    "sink_slots": ([0, "1"],),
    "norm_flags": ({"fc_norm": "yes"},),
    "created_s": ("now",),
    "run_id": ([],),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_manifest_with_a_field_of_the_wrong_kind(run: Path, field: str, value: object) -> None:
    _with_manifest(run, **{field: value})
    _fails(DamagedTraceError, run, MANIFEST, "a field is missing or wrong (", field)


@pytest.mark.parametrize(
    ("column", "tensor_parallel", "some"),
    [("sink_mass", 1, 1), ("sink_mass", 2, 10**6), ("top1", 1, 1)],
)
def test_null_elements_of_a_list_are_read_as_nan(
    tmp_path: Path, column: str, tensor_parallel: int, some: int
) -> None:
    """Arrow allows them in a list, and numpy has no number for them."""
    spec = Spec(requests=12, rounds=6, heads=2, tensor_parallel=tensor_parallel)
    run = write_run(tmp_path / "run", spec)
    for path in run.glob("draft-*.parquet"):
        table = pq.read_table(path)
        at = table.schema.get_field_index(column)
        lists = [
            [None] * len(values) if values and row < some else values
            for row, values in enumerate(table.column(at).to_pylist())
        ]
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.array(lists, field.type)), path)
    for path in run.glob("status-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "digests": {}}))
    elements = read_trace(run).draft.column(column).combine_chunks().flatten()
    assert elements.null_count == 0 and not np.isfinite(elements.to_numpy()).all()
    assert "NaN" not in to_json(analyze(Inputs(sources=[run], labels=["run"])))


def _copied(run: Path, record: str, name: str) -> Path:
    (path,) = run.glob(f"{record}-*")
    return Path(shutil.copy(path, run / name))


@pytest.mark.parametrize("read", [read_trace, open_run])
def test_a_copy_of_a_file_counts_once(
    read: Callable[[Path], Trace | Tables], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    rows = read_trace(run).verify.num_rows
    name = "verify-engine0-27393-0007.parquet"
    _copied(run, "verify", name)
    words = f"{name} is a copy of verify-engine0-27393-0000.parquet: the file is left out"
    assert read(run).problems == (words,)
    assert read_trace(run).verify.num_rows == rows


def test_rows_that_no_status_counts_are_reported(tmp_path: Path) -> None:
    """And those that one counts and no file holds."""
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    (path,) = run.glob("step-*")
    path.unlink()
    (path,) = OTHER.glob("verify-*")
    shutil.copy(path, run)
    for read in (read_trace, open_run):
        foreign, missing = read(run).problems
        assert foreign.startswith("verify-engine0-27582-0000.parquet is of a process that has no")
        assert missing.startswith("worker0-27420 wrote 2095 step rows, and its files hold 0")
    (path,) = run.glob("verify-engine0-27393*")
    path.unlink()
    (path,) = run.glob("verify-*")
    path.unlink()
    assert_fails(analyze_json(run), EXIT_NO_DATA, "engine0-27393 wrote 2051 verify rows")


def test_a_stream_put_together_of_two_is_refused(tmp_path: Path) -> None:
    run = Path(shutil.copytree(TRACES / "sglang", tmp_path / "run"))
    (path,) = run.glob("verify-*")
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DamagedTraceError, match="second header"):
        read_trace(run)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("verify-engine0-27393-0000.parquet",), "verify-engine0-27393-0000.parquet is damaged"),
        (("verify-engine0-1-0001.arrows", "verify-engine0-1-0002.arrows"), "is larger than"),
    ],
)
def test_a_file_of_a_terabyte_is_refused_at_once(
    names: Sequence[str], words: str, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    for name in names:
        with (run / name).open("ab") as file:
            file.truncate(1 << 40)
    with no_hang(), pytest.raises(DriftscopeError, match=words):
        analyze(Inputs(sources=[run], labels=["run"]))
