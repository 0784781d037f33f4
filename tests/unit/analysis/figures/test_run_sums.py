"""Runs that are read while the server runs, or cut in the middle of requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.figures.requests import UNFINISHED
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import Filter
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import NoDataError
from driftscope.findings.finding import Trust
from driftscope.json_report import figures_of
from driftscope.pipeline import compare, conclude, summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope_reports.terminal import LEFT_OUT, figure_rows

KINDS = (Prompts(label="chat"), Prompts(label="code", shift=-0.5))
TRUTH = Truth(requests=200, rounds=20, batches=(5,), prompts=KINDS, replicas=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("cohort") / "run", TRUTH))


def _read_at(trace: Trace, share: float) -> Trace:
    """Return the trace as it is when this share of its time has passed."""
    times = trace.verify.column("time_s")
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    end_s = first + share * (last - first)
    return replace(trace, **{name: _until(getattr(trace, name), end_s) for name in _ROWS})


_ROWS = ("draft", "verify", "step", "request")


def _until(table: pa.Table, end_s: float) -> pa.Table:
    return table.filter(pc.less_equal(table.column("time_s"), end_s))


def _message(run: RunSummary) -> str:
    (found,) = (each for each in conclude([run]).notes if each.id == "unfinished")
    return found.statement


def test_a_recording_of_whole_requests_leaves_out_nothing(whole: Trace) -> None:
    run = summarise(whole, "run")
    assert run.cohort is None
    assert all(each.id != "unfinished" for each in conclude([run]).notes)
    assert all(row[0] != LEFT_OUT for row in figure_rows([run]))
    assert figures_of(run)["cohort"] is None


def test_figures_use_the_requests_that_began_in_time(whole: Trace) -> None:
    """Requests chosen here by hand give the same figures."""
    trace = _read_at(whole, 0.7)
    run = summarise(trace, "run")
    cohort = run.cohort
    assert cohort is not None
    assert cohort.enough
    assert cohort.duration_s is not None
    rows = trace.verify.to_pandas()
    rows["key"] = rows.replica.astype(str) + "/" + rows.request
    ended = set(trace.request.to_pandas().pipe(lambda t: t.replica.astype(str) + "/" + t.request))
    lives = rows.groupby("key").agg(
        first=("time_s", "min"), last=("time_s", "max"), replica=("replica", "first")
    )
    end_s = lives.replica.map(lives.groupby("replica")["last"].max())
    assert cohort.running == sum(key not in ended for key in lives.index)
    used = lives.index[lives["first"] < end_s - cohort.duration_s]
    kept = rows[rows.key.isin(used) & (rows.drafted > 0)]
    assert run.rounds == len(kept) < cohort.served.rounds
    assert run.rounds + cohort.left_out == cohort.served.rounds == (rows.drafted > 0).sum()
    assert run.acceptance.mean_length == pytest.approx(1 + kept.accepted.mean())
    served = rows[rows.drafted > 0].accepted
    assert cohort.served.mean_length == pytest.approx(1 + served.mean())
    assert cohort.served.counted[0] == pytest.approx((served >= 1).mean())
    assert run.recording.chains < trace.draft.num_rows


def test_what_is_left_out_is_told_everywhere(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.7), "run")
    cohort = run.cohort
    assert cohort is not None
    assert f"{cohort.left_out} rounds of {cohort.served.rounds:,} are left out" in _message(run)
    assert f"{cohort.running} had not finished" in _message(run)
    (row,) = (row for row in figure_rows([run]) if row[0] == LEFT_OUT)
    assert row[1] == f"{cohort.left_out:,}"
    content = json.loads(json.dumps(figures_of(run)))["cohort"]
    assert content["left_out"] == cohort.left_out
    assert content["served"]["rounds"] == cohort.served.rounds
    timeline = run.closeup.timeline if run.closeup else None
    assert timeline is not None
    steps = sum(sum(each) for each in timeline.steps.values())
    assert steps > run.fallback.steps, "the picture of what happened has every step"


def test_files_and_memory_leave_out_the_same(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", replace(TRUTH, requests=100))
    for path in run.glob("request-*.parquet"):
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        pq.write_table(table.slice(0, table.num_rows - 3), path)
    files, memory = summarise(open_run(run), "run"), summarise(read_trace(run), "run")
    assert files.cohort is not None
    assert files.cohort == memory.cohort
    assert files.acceptance == memory.acceptance
    assert files.hidden.fed_rms == pytest.approx(memory.hidden.fed_rms)


def test_requests_that_have_not_finished_are_no_label(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.7), "run")
    assert {segment.label for segment in run.segments} == {"chat", "code"}
    assert {group.name for group in run.groups.label} == {"chat", "code"}
    assert UNFINISHED not in run.groups.shares


def test_too_short_a_recording_cannot_tell(whole: Trace) -> None:
    run = summarise(_read_at(whole, 0.03), "run")
    assert run.cohort is not None
    assert not run.cohort.enough
    assert run.rounds == run.cohort.served.rounds, "all of it is shown"
    assert run.acceptance.mean_length_interval is None
    assert run.acceptance.marginal_interval is None
    assert run.changes is None
    assert "cannot tell means and trends" in _message(run)
    assert "stop recording after the requests, or record longer" in _message(run)
    assert all(each.confidence is Trust.LOW for each in conclude([run]).findings)
    (row,) = (row for row in figure_rows([run]) if row[0] == LEFT_OUT)
    assert row[1] == "cannot tell"


def test_a_cut_leaves_out_requests_that_had_begun(whole: Trace) -> None:
    times = whole.verify.column("time_s")
    lasted = pc.max(times).as_py() - pc.min(times).as_py()
    run = summarise(whole, "run", only=Filter(since=f"{lasted / 2:.6f}s"))
    assert run.cohort is not None
    assert run.cohort.early_requests > 0
    assert run.cohort.late_requests == 0
    rows = whole.verify.to_pandas()
    first = rows.groupby(["replica", "request"]).time_s.transform("min")
    begin_s = times.to_numpy().max() - lasted / 2
    kept = rows[(first >= begin_s - 1e-6) & (rows.drafted > 0)]
    assert run.rounds == len(kept)
    assert "had begun before the cut" in _message(run)


def test_aborted_requests_stay(whole: Trace) -> None:
    reasons = np.array(["abort"] * whole.request.num_rows, dtype=object)
    at = whole.request.schema.get_field_index("finish_reason")
    aborted = whole.request.set_column(at, "finish_reason", pa.array(reasons, pa.string()))
    assert summarise(replace(whole, request=aborted), "run").cohort is None


def test_runs_seen_in_part_are_not_compared(whole: Trace) -> None:
    short = _read_at(whole, 0.03)
    with pytest.raises(NoDataError, match="cannot tell how it compares"):
        compare(whole, short, ("whole", "short"))
    runs = [summarise(each, name) for each, name in ((whole, "whole"), (short, "short"))]
    assert all(case.comparison is None for case in conclude(runs).cases)
    assert compare(whole, _read_at(whole, 0.7), ("whole", "longer")).differences
