"""Two runs held against each other: over each other, and each difference with its interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.analyses import gallery_run
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.compare import MARGINAL
from driftscope.analysis.number_words import percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope_reports.charts import is_number
from driftscope_reports.html import pictures as drawn_of
from driftscope_reports.html import sections
from driftscope_reports.model import Picture
from driftscope_reports.sections_speed import outcome_share, outcomes_of
from driftscope_reports.tables import comparison_cells, comparison_rows


@pytest.fixture(scope="module")
def runs() -> tuple[RunSummary, RunSummary]:
    return gallery_run("drifting"), gallery_run("server")


@pytest.fixture(scope="module")
def analysis(runs: tuple[RunSummary, RunSummary]) -> Analysis:
    return conclude(runs)


def _pictures(analysis: Analysis) -> dict[str, Picture]:
    return {p.id: p for p in drawn_of(analysis)}


def _words(analysis: Analysis) -> str:
    (section,) = (section for section in sections(analysis) if section.id == "compare")
    return str([section.conclusion, *section.below])


def test_what_differs_comes_first_in_the_table_as_compare_shows_it(analysis: Analysis) -> None:
    words, comparison = _words(analysis), analysis.cases[1].comparison
    assert comparison is not None
    marks = [comparison_cells(row)[-1] for row in comparison_rows(comparison)]
    assert "differs" in marks and "" in marks
    places = [marks.index(mark) for mark in dict.fromkeys(marks)]
    assert places == sorted(places) and marks[0] == "differs"
    assert f"{marks.count('differs')} of {len(marks)} figures of server differ clearly" in words
    for row in comparison.differences:
        assert (str(comparison_cells(row)[-2]) in words) or not row.differs


def test_runs_that_cannot_be_compared_say_so(runs: tuple[RunSummary, RunSummary]) -> None:
    found = conclude([runs[0], replace(runs[1], side=None)])
    (section,) = (section for section in sections(found) if section.id == "compare")
    assert "these runs cannot be compared" in section.in_short
    assert not section.pictures


def test_masses_lie_over_each_other_class_by_class(
    analysis: Analysis, runs: tuple[RunSummary, RunSummary]
) -> None:
    pictures = _pictures(analysis)
    for name in ("self", "sink"):
        for i, run in enumerate(runs):
            drawn = pictures[f"masses-{name}"].chart.data[i]
            assert drawn.y == getattr(run.attention, f"{name}_mass")
            assert drawn.line.color == f"var(--run-{i})"
            assert all(
                ends[0] < y < ends[1]
                for ends, y in zip(drawn.meta["ends"], drawn.y, strict=True)
                if ends and is_number(y) and y
            )
    assert "masses-self" not in _pictures(conclude(runs[:1]))


def test_every_decode_step_has_one_outcome_and_each_share_its_interval(
    analysis: Analysis, runs: tuple[RunSummary, RunSummary]
) -> None:
    names = outcomes_of(runs)
    assert {"accepted", "rejected", "k_zero", "structured_output"} <= set(names)
    (section,) = (section for section in sections(analysis) if section.id == "fallback")
    for run in runs:
        assert sum(outcome_share(run, name)[0] or 0 for name in names) == pytest.approx(1)
        for name in names:
            share, spread = outcome_share(run, name)
            assert share is not None and spread is not None
            assert spread.low <= share <= spread.high
            assert f"{percent(spread.low)} to {percent(spread.high)}" in str(section.below)
    assert outcome_share(runs[0], "k_zero")[0] == 0


def test_intervals_of_rounds_and_of_steps_hold_their_values(tmp_path: Path) -> None:
    spec = Spec(undrafted=("k_zero", "no_draft", None))
    run = summarise(read_trace(write_run(tmp_path / "run", spec)), "run")
    died = [n / run.rounds for n in run.acceptance.histogram[: run.k]]
    for name, values in (("died", died), ("conditional", run.acceptance.conditional)):
        assert len(run.spread[name]) == run.k
        for value, spread in zip(values, run.spread[name], strict=True):
            assert isinstance(spread, Interval) and value is not None
            assert spread.low < value < spread.high
    assert set(run.fallback_spread.by_reason) == {"k_zero", "no_draft", "unknown"}
    assert run.fallback.by_reason == {"k_zero": 1, "no_draft": 1, "unknown": 1}
    undrafted = run.fallback_spread.undrafted
    assert undrafted is not None
    assert undrafted.low < run.fallback.undrafted_share < undrafted.high


def test_acceptance_is_compared_as_compare_does(tmp_path: Path) -> None:
    """Paired, by one code path."""
    truth = Truth(requests=60, rounds=15, k=4, between=1.2)
    worse = replace(truth, conditional=(0.6, 0.5, 0.5, 0.5), seed=2)
    runs = [
        summarise(read_trace(simulate(tmp_path / name, world)), name)
        for name, world in (("1", replace(truth, seed=1)), ("2", worse))
    ]
    found = conclude(runs)
    comparison = found.cases[1].comparison
    assert comparison is not None and comparison.pairs == 60
    drawn = _pictures(found)["compare-acceptance"].chart.data
    low = {x: e[0] for s in drawn for x, e in zip(s.x, s.meta["ends"], strict=True) if e}
    for at_depth in comparison.at(MARGINAL):
        assert at_depth.interval is not None and at_depth.depth is not None
        assert low[at_depth.depth] == pytest.approx(at_depth.interval.low)


def test_runs_that_served_other_labels_say_at_which_mix_they_differ(tmp_path: Path) -> None:
    def run(name: str, easy: float, seed: int) -> RunSummary:
        kinds = (
            Prompts(label="easy", share=easy, shift=0.8),
            Prompts(label="hard", share=1 - easy, shift=-0.8),
        )
        truth = Truth(
            requests=80, rounds=8, k=3, prompts=kinds, seed=seed, prompts_seed=seed, near=0.2
        )
        return summarise(simulate(tmp_path / name, truth), name)

    words = _words(conclude([run("a", 0.8, 1), run("b", 0.2, 2)]))
    assert "b: They served labels in other shares" in words
    assert "own figures are as served" in words
    assert "other shares" not in _words(conclude([run("c", 0.5, 3), run("d", 0.5, 3)]))
