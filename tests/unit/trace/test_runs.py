"""Runs of a folder, and runs of several ranks."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import START_S, Spec, by_source, rows, write_run

from driftscope.errors import NotATraceError, TraceError
from driftscope.pipeline import summarise
from driftscope.trace.manifest import CLIENT, MANIFEST
from driftscope.trace.ranks import Place, place_of
from driftscope.trace.reader import read_trace
from driftscope.trace.records import DraftRow, StepRow
from driftscope.trace.runs import (
    DEPTH,
    RunEntry,
    alive,
    beyond,
    entry_of,
    remove,
    resolve_run,
    runs_of,
    search,
)
from driftscope.trace.status import StartFault, Status, leave_fault, status_path
from driftscope.vocabulary import RunState

DAY_S = 86400.0
MB = 1_000_000
SPEC = Spec(requests=3, rounds=5, undrafted=("k_zero",))


def _status(run: Path, source: str, flushed_s: float, *, closed: bool) -> None:
    path = status_path(run, source)
    path.write_text(Status(source=source, closed=closed, flushed_s=flushed_s).to_json())
    os.utime(path, (flushed_s, flushed_s))


@pytest.mark.parametrize("closed", [True, False], ids=["sealed", "streams"])
def test_rounds_are_drafts_that_were_verified(tmp_path: Path, closed: bool) -> None:
    entry = entry_of(write_run(tmp_path / "run", SPEC, closed=closed))
    assert entry.rounds == 15, "the undrafted step is no round"
    assert entry.octets == sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    assert entry.created_s == START_S and not entry.is_replay
    assert beyond([entry], time.time(), older_s=DAY_S) == ((entry,) if closed else ())


@pytest.mark.parametrize(
    ("pid", "written_ago_s", "state"),
    [
        (os.getpid(), 0.0, RunState.RECORDING),
        (999999999, 0.0, RunState.RECORDING),
        (999999999, 1e6, RunState.NOT_CLOSED),
    ],
    ids=["this process", "another machine", "long ago"],
)
def test_a_run_that_was_not_closed_is_alive_or_was_killed(
    tmp_path: Path, pid: int, written_ago_s: float, state: str
) -> None:
    run = write_run(tmp_path / "run", SPEC)
    assert entry_of(run).state == RunState.CLOSED
    _status(run, f"worker0-{pid}", time.time() - written_ago_s, closed=False)
    assert entry_of(run).state == state


def test_another_process_with_the_same_number_does_not_keep_a_run_alive(tmp_path: Path) -> None:
    assert alive(f"worker0-{os.getpid()}", time.time())
    assert not alive(f"worker0-{os.getpid()}", START_S)
    assert alive(f"worker0-{os.getpid()}.2", time.time())
    assert not alive("worker0", time.time())


def test_an_engine_that_ended_before_its_drafter_was_loaded(tmp_path: Path) -> None:
    """It is listed, named where it is asked for, and can be removed."""
    run = tmp_path / "run"
    run.mkdir()
    _status(run, "core-999999999", START_S, closed=True)
    entry = entry_of(run)
    assert (entry.state, entry.manifest, entry.rounds) == (RunState.NEVER_BEGAN, None, None)
    with pytest.raises(NotATraceError, match="no server got as far as loading its models"):
        resolve_run(run)
    leave_fault(run, StartFault(kind="drafter", reason="no such drafter", source="worker0-1"))
    assert entry_of(run).problem == "no such drafter"
    with pytest.raises(NotATraceError, match="the server recorded nothing: no such drafter"):
        resolve_run(run)
    assert runs_of([tmp_path]) == (run,)
    remove(run)
    assert not run.exists()


def test_a_run_without_rounds_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(requests=0))
    entry = entry_of(run)
    assert (entry.state, entry.rounds) == (RunState.EMPTY, 0)
    (run / MANIFEST).write_text("{")
    entry = entry_of(run)
    assert entry.state == RunState.UNREADABLE and "manifest" in entry.problem


def test_damaged_rows_leave_the_rounds_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    for path in run.glob("verify-*.parquet"):
        path.write_bytes(b"no Parquet")
    assert entry_of(run).rounds is None


SMALL = Spec(requests=1, rounds=1)


def _run(path: Path, created_s: float, engine: str = "vllm") -> Path:
    write_run(path, SMALL)
    content = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**content, "created_s": created_s, "engine": engine}))
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two probe's runs and a newer replay in the usual folder."""
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "driftscope-runs" / "old", 100.0)
    _run(tmp_path / "driftscope-runs" / "new", 200.0)
    _run(tmp_path / "driftscope-runs" / "asked", 300.0, CLIENT)
    return tmp_path / "driftscope-runs"


def test_latest_is_the_newest_run_of_a_probe(runs: Path) -> None:
    assert resolve_run(Path("latest")) == Path("driftscope-runs/new")
    assert resolve_run(runs / "latest") == runs / "new"
    assert resolve_run(runs / "old") == runs / "old"


def test_a_missing_run_names_its_neighbours_and_the_start_that_failed(runs: Path) -> None:
    with pytest.raises(NotATraceError, match=r"when its models are loaded.*/new") as refused:
        resolve_run(runs / "missing")
    assert "no such directory" in str(refused.value)


def test_links_are_not_followed_and_the_search_has_a_depth(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*map(str, range(DEPTH)))
    _run(deep, 1.0)
    _run(tmp_path.joinpath("too", *map(str, range(DEPTH))), 1.0)
    outside = _run(tmp_path.parent / f"{tmp_path.name}-outside", 1.0)
    (tmp_path / "link").symlink_to(outside)
    assert list(search(tmp_path)) == [deep]


def _refused(run: Path, words: str, **how: bool) -> None:
    with pytest.raises(TraceError, match=words):
        remove(run, **how)
    assert (run / MANIFEST).exists()


@pytest.mark.parametrize("name", ["report.html", "notes", "draft-mine.parquet.bak"])
def test_a_directory_with_a_foreign_file_is_refused(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", SPEC)
    (run / name).touch()
    _refused(run, name)
    assert (run / name).exists()


def test_links_to_a_run_and_inside_one_are_refused(tmp_path: Path) -> None:
    """Even if it has the name of a recorder's file."""
    run, precious = write_run(tmp_path / "run", SPEC), tmp_path / "precious"
    (tmp_path / "link").symlink_to(run)
    _refused(tmp_path / "link", "symbolic link")
    precious.write_text("kept")
    (run / "status-worker9-1.json").symlink_to(precious)
    _refused(run, "status-worker9-1")
    assert precious.read_text() == "kept"


def test_a_run_in_use_is_kept_and_a_killed_one_removed_only_if_asked(tmp_path: Path) -> None:
    run, mine = write_run(tmp_path / "run", SPEC), f"worker0-{os.getpid()}"
    _status(run, mine, time.time(), closed=False)
    _refused(run, "still being recorded", unclosed=True)
    _status(run, mine, START_S, closed=True)
    _status(run, "worker0-999999999", START_S, closed=False)
    _refused(run, "--unclosed")
    remove(run, unclosed=True)
    assert not run.exists()


@pytest.mark.parametrize(
    "files",
    [
        {MANIFEST: '{"name": "my app"}'},
        {MANIFEST: '{"name": "my app"}', "request-log-2024.parquet": ""},
        {MANIFEST: '{"schema_version": "1.0", "modules": []}'},
        {MANIFEST: "{}", "status-page.json": '{"closed": true}'},
        {"fault-report.json": '{"my": "data"}'},
        {"fault-report.json": '{"my": "data"}', "draft-thesis-0001.parquet": ""},
        {"status-of-project.json": "[]"},
    ],
    ids=lambda files: " ".join(files),
)
def test_a_folder_of_another_tool_with_names_of_a_run_is_kept(
    tmp_path: Path, files: dict[str, str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
        os.utime(folder / name, (START_S, START_S))
    with pytest.raises(TraceError):
        remove(folder, unclosed=True)
    assert {path.name for path in folder.iterdir()} == files.keys()
    assert entry_of(folder).state == RunState.UNREADABLE


def test_a_run_whose_manifest_is_damaged_is_proved_by_its_status(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SPEC)
    (run / MANIFEST).write_text("")
    (run / "telemetry-worker0-1.json").write_text("{}")  # of a server that exports metrics
    remove(run)
    assert not run.exists()


NOW_S = 1e9
ENTRIES = [
    RunEntry(
        path=Path(f"run{days}"),
        created_s=NOW_S - days * DAY_S,
        state=RunState.CLOSED,
        octets=10 * MB,
    )
    for days in range(1, 6)
]
"""Five runs of 10 MB, newest first, 1, 2, 3, 4 and 5 days old."""


@pytest.mark.parametrize(
    ("limits", "days"),
    [
        ({"older_s": 2.5 * DAY_S}, (3, 4, 5)),
        ({"older_s": 2.5 * DAY_S, "keep": 4}, (5,)),
        ({"total_octets": 25 * MB}, (3, 4, 5)),
        ({"total_octets": 50 * MB}, ()),
    ],
    ids=["by age", "but the newest are kept", "the oldest beyond a total size", "none beyond it"],
)
def test_runs_beyond_an_age_or_a_total_size_are_chosen(
    limits: dict[str, Any], days: tuple[int, ...]
) -> None:
    assert [entry.path.name for entry in beyond(ENTRIES, NOW_S, **limits)] == [
        f"run{day}" for day in days
    ]


@pytest.mark.parametrize("state", [RunState.RECORDING, RunState.NOT_CLOSED, RunState.UNREADABLE])
def test_a_run_that_is_not_closed_is_never_chosen(state: str) -> None:
    entries = [replace(entry, state=state) for entry in ENTRIES]
    assert beyond(entries, NOW_S, older_s=0.0, total_octets=0) == ()


WHOLE = Spec(requests=4, rounds=3, layers=2, heads=5, windowed=(1,), distance_every=2)
TP2 = replace(WHOLE, tensor_parallel=2)
DP2 = replace(WHOLE, data_parallel=2)


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("worker0-4711", Place()),
        ("worker3-4711", Place(rank=3)),
        ("worker1.dp2-4711", Place(rank=1, replica=2)),
        ("engine0-12", Place(replica=0)),
        ("engine1-12", Place(replica=1)),
        ("reference-12", Place()),
        ("core-2", Place()),
        ("worker1", Place()),
        ("child", Place()),
    ],
)
def test_a_source_says_where_it_stands(source: str, place: Place) -> None:
    assert place_of(source) == place


@pytest.mark.parametrize("closed", [True, False], ids=["sealed", "streams"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_join_to_what_one_rank_would_have_recorded(
    tmp_path: Path, ranks: int, closed: bool
) -> None:
    """5 heads on 2 or 3 ranks: a plain mean of the ranks' means would be another."""
    spec = replace(WHOLE, tensor_parallel=ranks)
    one = read_trace(write_run(tmp_path / "one", WHOLE, closed=closed))
    several = read_trace(write_run(tmp_path / "several", spec, closed=closed))
    assert [p for p in several.problems if "still recording" not in p] == []
    assert several.draft.schema == one.draft.schema
    for name in one.draft.column_names:
        resolve_run, wanted = (t.draft.column(name).to_pylist() for t in (several, one))
        if resolve_run != wanted:  # NaN, and means of means
            assert [v is None for v in resolve_run] == [v is None for v in wanted], name
            known = [[v for v in values if v is not None] for values in (resolve_run, wanted)]
            numbers = [np.array(v, dtype=np.float64) for v in known]
            assert np.allclose(*numbers, rtol=2e-5, atol=1e-5, equal_nan=True), name


def test_a_step_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    truth = [row for row in rows(WHOLE) if isinstance(row, StepRow)]
    trace = read_trace(write_run(tmp_path / "run", TP2, closed=False))
    assert trace.step.column("step").to_pylist() == [row.step for row in truth]
    assert trace.step.column("probe_s").to_pylist() == [2 * row.probe_s for row in truth]
    assert trace.step.column("draft_s").to_pylist() == [row.draft_s for row in truth]


def test_chains_that_a_rank_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    content = by_source(TP2)
    chains = [row for row in content["worker1-2"] if isinstance(row, DraftRow)]
    for lost in chains[-3:]:
        content["worker1-2"].remove(lost)
    trace = read_trace(write_run(tmp_path / "run", TP2, content, closed=False))
    assert trace.draft.num_rows == len(chains) - 3
    assert trace.problems[0] == (
        "3 chains were recorded by only some of the tensor-parallel ranks and are left out"
    )
    assert trace.draft.column("fed_rms").null_count == 0


def test_masses_by_distance_are_of_all_ranks_or_of_none(tmp_path: Path) -> None:
    """With fewer heads they would not sum to 1 with the other masses."""
    content = by_source(TP2)
    at, row = next(
        (at, row)
        for at, row in enumerate(content["worker1-2"])
        if isinstance(row, DraftRow) and row.distance_mass is not None
    )
    content["worker1-2"][at] = replace(row, distance_mass=None)
    whole = read_trace(write_run(tmp_path / "whole", TP2, closed=False)).draft
    trace = read_trace(write_run(tmp_path / "run", TP2, content, closed=False))
    assert trace.draft.column("sink_mass").null_count == 0
    nulls = trace.draft.column("distance_mass").null_count
    assert nulls == whole.column("distance_mass").null_count + 1 < whole.num_rows


@pytest.mark.parametrize("spec", [DP2, replace(DP2, tensor_parallel=2)], ids=["dp2", "tp2 dp2"])
@pytest.mark.slow
def test_replicas_do_not_collide(tmp_path: Path, spec: Spec) -> None:
    """Both number their steps and their requests alike."""
    one = summarise(read_trace(write_run(tmp_path / "one", WHOLE)), "run")
    trace = read_trace(write_run(tmp_path / "two", spec))
    for record in ("draft", "verify", "step", "request"):
        replicas = getattr(trace, record).column("replica").to_pylist()
        assert replicas.count(0) == replicas.count(1) == len(replicas) / 2, record
    two = summarise(trace, "run")
    counts = [
        (run.requests, run.rounds, run.recording.chains, run.recording.verified_chains)
        for run in (one, two)
    ]
    assert counts[1] == tuple(2 * count for count in counts[0])
    assert two.acceptance.marginal == one.acceptance.marginal
    assert two.hidden.fed_rms == pytest.approx(one.hidden.fed_rms)
