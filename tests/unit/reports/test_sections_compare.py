"""Two runs held against each other: over each other, and each difference with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.compare import MARGINAL, Comparison
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope_reports.charts import is_number
from driftscope_reports.html import pictures as drawn_of
from driftscope_reports.html import sections
from driftscope_reports.model import Picture
from driftscope_reports.sections_compare import APART, BETTER, SAME, WORSE, Good, Row, rows_of
from driftscope_reports.sections_speed import (
    outcome_share,
    outcome_words,
    outcomes_of,
    short_outcome,
)

GALLERY = Path(__file__).parents[3] / "reports" / "gallery" / "traces"


@pytest.fixture(scope="module")
def runs() -> tuple[RunSummary, RunSummary]:
    first, second = (summarise(read_trace(GALLERY / n), n) for n in ("drifting", "server"))
    return first, second


@pytest.fixture(scope="module")
def analysis(runs: tuple[RunSummary, RunSummary]) -> Analysis:
    return conclude(runs)


def _pictures(analysis: Analysis) -> dict[str, Picture]:
    return {p.id: p for p in drawn_of(analysis)}


def _rows(runs: Sequence[RunSummary], comparison: Comparison | None = None) -> dict[str, Row]:
    return {row.words: row for row in rows_of(*runs, comparison)}


def _words(analysis: Analysis) -> str:
    (section,) = (section for section in sections(analysis) if section.id == "compare")
    return str([section.conclusion, *section.below])


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


def test_the_fallback_s_shares_stand_side_by_side_with_their_differences(
    analysis: Analysis, runs: tuple[RunSummary, RunSummary]
) -> None:
    pictures = _pictures(analysis)
    names = outcomes_of(runs)
    assert {"accepted", "rejected", "k_zero", "structured_output"} <= set(names)
    for run in runs:
        assert sum(outcome_share(run, name)[0] or 0 for name in names) == pytest.approx(1)
        for name in names:
            share, spread = outcome_share(run, name)
            assert share is not None and spread is not None
            assert spread.low <= share <= spread.high
    assert outcome_share(runs[0], "k_zero")[0] == 0
    shares = pictures["fallback-shares"].chart.data
    assert [s.x for s in shares] == [tuple(short_outcome(n) for n in names)] * 2
    rows = _rows(runs)
    assert rows["Steps: rejected round"].good is Good.LESS
    deliberate = rows[f"Steps: {outcome_words('k_zero')}"]
    assert deliberate.word == APART and (deliberate.gap.value or 0) > 0


def test_times_that_differ_by_what_two_starts_differ_are_not_better(
    runs: tuple[RunSummary, RunSummary],
) -> None:
    first = runs[0]
    assert first.closeup is not None
    words = []
    for factor in (1.08, 1.4):
        slower = {
            name: replace(d, count=10**6, quantiles_s=tuple(factor * q for q in d.quantiles_s))
            for name, d in first.closeup.durations.items()
        }
        sure = {name: replace(d, count=10**6) for name, d in first.closeup.durations.items()}
        pair = (
            replace(first, closeup=replace(first.closeup, durations=times))
            for times in (sure, slower)
        )
        words.append(_rows(tuple(pair))["Time per output token, p50"].word)
    assert words == [SAME, WORSE]


def test_slower_is_worse_and_faster_better_at_each_percentile(
    runs: tuple[RunSummary, RunSummary],
) -> None:
    first = runs[0]
    assert first.closeup is not None
    slow = {
        name: replace(d, quantiles_s=tuple(3 * q for q in d.quantiles_s))
        for name, d in first.closeup.durations.items()
    }
    other = replace(first, label="slow", closeup=replace(first.closeup, durations=slow))
    for pair, word in (((first, other), WORSE), ((other, first), BETTER)):
        rows = _rows(pair)
        assert rows["Time per output token, p50"].word == word
        assert (rows["Time per output token, p90"].gap.value or 0) * (1, -1)[word == BETTER] > 0


def test_no_level_of_attention_is_better_or_worse(runs: tuple[RunSummary, RunSummary]) -> None:
    healthy = summarise(read_trace(GALLERY / "healthy"), "healthy")
    for name in ("chain", "sink"):
        assert _rows((runs[0], healthy))[f"Attention on the {name}, last depth"].word == APART


def test_intervals_of_rounds_and_of_steps_hold_their_values(tmp_path: Path) -> None:
    spec = Spec(undrafted=("k_zero", "no_draft", None))
    run = summarise(read_trace(write_run(tmp_path / "run", spec)), "run")
    died = [n / run.rounds for n in run.acceptance.histogram[: run.k]]
    for name, values in (("died", died), ("conditional", run.acceptance.conditional)):
        assert len(run.spread[name]) == run.k
        for value, spread in zip(values, run.spread[name], strict=True):
            assert isinstance(spread, Interval)
            assert value is not None
            assert spread.low < value < spread.high
    assert set(run.fallback_spread.by_reason) == {"k_zero", "no_draft", "unknown"}
    assert run.fallback.by_reason == {"k_zero": 1, "no_draft": 1, "unknown": 1}
    undrafted = run.fallback_spread.undrafted
    assert undrafted is not None
    assert undrafted.low < run.fallback.undrafted_share < undrafted.high


def test_acceptance_is_compared_as_compare_does(tmp_path: Path) -> None:
    """Paired, by one code path: narrower than two runs' own intervals make it."""
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
        a, b = (run.acceptance for run in runs)
        assert a.marginal_interval and b.marginal_interval
        ours, theirs = (
            a.marginal_interval[at_depth.depth - 1],
            b.marginal_interval[at_depth.depth - 1],
        )
        assert ours and theirs
        alone = difference(
            b.marginal[at_depth.depth - 1], theirs, a.marginal[at_depth.depth - 1], ours
        )
        assert at_depth.interval.high - at_depth.interval.low < 0.85 * (alone.high - alone.low)


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
