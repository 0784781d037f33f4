"""Runs that several processes recorded: heads of tensor-parallel ranks, replicas side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import Spec, by_source, manifest, rows, write_rows, write_run

from driftscope.analysis.query.record_views import open_run
from driftscope.pipeline import summarise
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.ranks import Place, place_of
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import DraftRow, Row, StepRow

SPEC = Spec(requests=4, rounds=3, layers=2, heads=5, per_head=True, windowed=(1,), distance_every=2)
TP2 = replace(SPEC, tensor_parallel=2)
DP2 = replace(SPEC, data_parallel=2)
BOTH = replace(SPEC, tensor_parallel=2, data_parallel=2)


def _written(run: Path, spec: Spec, content: dict[str, list[Row]]) -> Trace:
    run.mkdir()
    (run / MANIFEST).write_text(manifest(spec).to_json())
    for source, each in content.items():
        write_rows(run, source, each, closed=False)
    return read_trace(run)


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
    spec = replace(SPEC, tensor_parallel=ranks)
    one = read_trace(write_run(tmp_path / "one", SPEC, closed=closed))
    several = read_trace(write_run(tmp_path / "several", spec, closed=closed))
    assert [p for p in several.problems if "still recording" not in p] == []
    assert several.draft.schema == one.draft.schema
    for name in one.draft.column_names:
        found, wanted = (t.draft.column(name).to_pylist() for t in (several, one))
        if found != wanted:  # NaN, and means of means
            assert [v is None for v in found] == [v is None for v in wanted], name
            known = [[v for v in values if v is not None] for values in (found, wanted)]
            numbers = [np.array(v, dtype=np.float64) for v in known]
            assert np.allclose(*numbers, rtol=2e-5, atol=1e-5, equal_nan=True), name


def test_heads_of_the_ranks_stand_in_rank_order(tmp_path: Path) -> None:
    trace = read_trace(write_run(tmp_path / "run", TP2, closed=False))
    masses = np.array(trace.draft.column("head_mass").to_pylist())
    by_head = masses.reshape(-1, SPEC.k, SPEC.layers, SPEC.heads, 5)
    assert (np.diff(by_head[..., 1], axis=-1) > 0).all(), "the later, the more on the prompt"
    assert set(trace.draft.column("heads").to_pylist()) == {5}
    assert np.isnan(by_head[:, :, 1, :, 0]).all()
    assert not np.isnan(by_head[:, :, 0]).any()


@pytest.mark.slow
def test_a_run_is_cut_by_rank(tmp_path: Path) -> None:
    """The first of 5 heads are the first rank's; states are recorded by that one alone."""
    content = by_source(TP2)
    content["worker1-2"] = [
        replace(row, self_mass=[mass / 2 for mass in row.self_mass or ()])
        if isinstance(row, DraftRow)
        else row
        for row in content["worker1-2"]
    ]
    run = _written(tmp_path / "run", TP2, content).path
    first, second = summarise(open_run(run), "run", by="rank").segments
    whole = summarise(open_run(run), "run")
    assert (first.label, second.label) == ("rank 0", "rank 1")
    assert first.rounds == second.rounds == whole.rounds
    assert (first.growth, second.growth) == (pytest.approx(whole.hidden.growth), None)
    assert second.self_mass == pytest.approx((first.self_mass or 0) / 2)
    assert whole.attention.self_mass is not None
    mean = (2 * (first.self_mass or 0) + 3 * (second.self_mass or 0)) / 5
    assert whole.attention.self_mass[-1] == pytest.approx(mean, rel=1e-4)


def test_a_step_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    truth = [row for row in rows(SPEC) if isinstance(row, StepRow)]
    trace = read_trace(write_run(tmp_path / "run", TP2, closed=False))
    assert trace.step.column("step").to_pylist() == [row.step for row in truth]
    assert trace.step.column("probe_s").to_pylist() == [2 * row.probe_s for row in truth]
    assert trace.step.column("draft_s").to_pylist() == [row.draft_s for row in truth]


def test_chains_that_a_rank_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    content = by_source(TP2)
    chains = [row for row in content["worker1-2"] if isinstance(row, DraftRow)]
    for lost in chains[-3:]:
        content["worker1-2"].remove(lost)
    trace = _written(tmp_path / "run", TP2, content)
    assert trace.draft.num_rows == len(chains) - 3
    assert trace.problems == (
        "3 chains were recorded by only some of the tensor-parallel ranks and are left out",
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
    trace = _written(tmp_path / "run", TP2, content)
    assert trace.draft.column("sink_mass").null_count == 0
    nulls = trace.draft.column("distance_mass").null_count
    assert nulls == whole.column("distance_mass").null_count + 1 < whole.num_rows


def test_a_rank_that_recorded_nothing_leaves_the_others(tmp_path: Path) -> None:
    content = by_source(TP2)
    del content["worker1-2"]
    trace = _written(tmp_path / "run", TP2, content)
    assert set(trace.draft.column("heads").to_pylist()) == {2}
    assert trace.draft.num_rows == sum(isinstance(row, DraftRow) for row in rows(SPEC))


def test_masses_that_were_not_taken_stay_none(tmp_path: Path) -> None:
    plain = replace(TP2, heads=0, per_head=False, windowed=())
    trace = read_trace(write_run(tmp_path / "run", plain))
    assert trace.draft.column("sink_mass").null_count == trace.draft.num_rows
    assert trace.draft.column("head_mass").null_count == trace.draft.num_rows
    assert trace.draft.column("fed_rms").null_count == 0


@pytest.mark.parametrize("spec", [DP2, BOTH], ids=["dp2", "tp2 dp2"])
@pytest.mark.slow
def test_replicas_do_not_collide(tmp_path: Path, spec: Spec) -> None:
    """Both number their steps and their requests alike."""
    one = summarise(read_trace(write_run(tmp_path / "one", SPEC)), "run")
    trace = read_trace(write_run(tmp_path / "two", spec))
    for record in ("draft", "verify", "step", "request"):
        replicas = getattr(trace, record).column("replica").to_pylist()
        assert replicas.count(0) == replicas.count(1) == len(replicas) / 2, record
    two = summarise(trace, "run")
    assert (two.requests, two.rounds) == (2 * one.requests, 2 * one.rounds)
    assert two.recording.chains == 2 * one.recording.chains
    assert two.recording.verified_chains == 2 * one.recording.verified_chains
    assert two.acceptance.marginal == one.acceptance.marginal
    assert two.hidden.fed_rms == pytest.approx(one.hidden.fed_rms)
