"""Bounds of the calibration, and a small calibration that meets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.calibration.__main__ import TABLES, main
from benchmarks.calibration.causes import PARTS, ablated
from benchmarks.calibration.comparisons import MIXES, false_calls, other_mixes, told_apart
from benchmarks.calibration.estimates import REPEATED, clustered, coverage, run_of, shared_steps
from benchmarks.calibration.inside import RelationWorld, related
from benchmarks.calibration.table import Row
from driftscope.analysis.statistics.ratio import intervals


@pytest.mark.parametrize(
    ("called", "trials", "met"), [(0.05, 1000, True), (0.08, 1000, False), (0.1, 100, True)]
)
def test_false_calls_are_bounded_by_chance(called: float, trials: int, met: bool) -> None:
    lines = false_calls.breaches([Row(world="r, paired", figures={"called": called})], trials)
    assert lines == ([] if met else ["false_calls: r, paired: called 0.080, wanted at most 0.071"])


def test_an_interval_that_is_too_narrow_is_a_breach() -> None:
    (line,) = coverage.breaches([Row(world="r", figures={"covered": 0.9})], 1000)
    assert line.startswith("coverage: r: covered 0.900, wanted at least 0.9")


def test_a_missed_relation_is_a_breach() -> None:
    figures = {"called": 0.5, "covered": 0.95, "over_true_size": 1.0}
    row = Row(world="w", figures=figures, truth=RelationWorld(effect=0.3))
    (line,) = related.breaches([row], 400)
    assert "called 0.500" in line


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, None),
        ({"tokens_found": 0.04}, None),
        ({"states_found": 0.5}, "states found 0.500, wanted at least 0.7"),
        ({"tokens_found": 0.3}, "tokens found 0.300, wanted at most 0.1"),
        ({"states_off": -0.1}, "states off -0.100, wanted"),
    ],
)
def test_a_cause_that_is_mistaken_is_a_breach(figures: dict[str, float], words: str | None) -> None:
    right = {f"{part}_{name}": 0.0 for part in PARTS for name in ("found", "off")}
    row = Row(world="w", truth="states", figures={**right, "states_found": 1.0, **figures})
    lines = ablated.breaches([row], 50)
    assert len(lines) == (words is not None)
    assert words is None or (words in lines[0] and "ablations: w: " in lines[0])


AT_NIGHT = ("unfinished", "within_request", "ablations", "speed")
"""Tables of which `test_run_sums.py`, `test_strata.py`, `ablate/test_command.py` and
`test_speed.py` have worlds of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "trials"),
    [
        pytest.param(table, trials, marks=[pytest.mark.nightly] * (table in AT_NIGHT))
        for table, trials in (
            ("gate", 20),
            ("risk_sets", 40),
            ("unfinished", 6),
            ("within_request", 30),
            ("k_advice", 20),
            ("ablations", 10),
            ("cut_drafts", 10),
            ("server_logs", 40),
            ("file_sums", 40),
            ("speed", 8),
        )
    ],
)
def test_a_small_calibration_meets_its_bounds(table: str, trials: int) -> None:
    lines: list[str] = []
    code = main(["--trials", str(trials), "--only", table], say=lines.append)
    assert code == 0, [line for line in lines if line.startswith("breach")]


def test_a_calibration_that_breaches_a_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(
        false_calls,
        name="gate",
        worlds={"bad": None},
        trial=lambda _, seed: {"called": seed % 2 == 0},
    )
    monkeypatch.setitem(TABLES, "gate", table)
    lines: list[str] = []
    assert main(["--trials", "100", "--only", "gate"], say=lines.append) == 1
    assert lines[-1].startswith("breach: gate: bad: called 0.500")


TRIALS = 40
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["16 prompts x 4", "8 prompts x 8", "20 prompts x 15 sessions"])
def test_intervals_over_clusters_hold_the_truth_and_equal_runs_do_not_differ(name: str) -> None:
    row = clustered.row(name, TRIALS)
    assert not clustered.breaches([row], TRIALS)
    assert row.figures["by_request"] < 0.8, "requests of one prompt are not independent"
    assert row.figures["design_effect"] > 2


def test_four_prompts_have_no_interval_however_often_they_are_asked() -> None:
    assert intervals(run_of(REPEATED["4 prompts x 10"], 1).rounds.length_ratio()) == (None,)


def test_the_truth_is_that_of_a_very_large_run() -> None:
    for name in ("200 prompts x 1", "20 prompts x 15 sessions"):
        truth = REPEATED[name]
        lengths = [run_of(truth, seed).rounds.length_ratio().value[0] for seed in range(200)]
        assert sum(lengths) / len(lengths) == pytest.approx(truth.mean_length(), abs=0.03)


def test_another_mix_of_labels_is_no_difference_of_the_drafter() -> None:
    trials = 12
    rows = [other_mixes.row(mix, trials) for mix in MIXES]
    assert not other_mixes.breaches(rows, trials)
    assert all(row.figures["as_served"] > 0.8 for row in rows[1:]), "the mixes do differ"


def test_independent_times_lose_little() -> None:
    found = shared_steps.row("1 at once, 160 requests", 100).figures
    assert found["covered"] >= found["over_requests"] > 0.85
    assert 1.0 <= found["wider"] < 1.2


def test_times_of_requests_at_once_are_not_independent_and_intervals_over_them_a_breach() -> None:
    row = shared_steps.row("4 at once, 320 requests", 100)
    found = row.figures
    assert found["over_requests"] < 0.85 < found["covered"]
    assert found["wider"] > 1.5
    assert shared_steps.breaches([row], 400) == []
    narrow = replace(row, figures={"covered": found["over_requests"]})
    (line,) = shared_steps.breaches([narrow], 400)
    assert line.startswith("shared_steps: 4 at once, 320 requests: covered 0.")


def test_a_gate_takes_the_pairs_that_the_first_screen_takes() -> None:
    """The hardest prompts of a worse drafter have no rows: its pairs are worse all the same."""
    row = told_apart.row("A1 hardest prompts missing", 1)
    assert [row.figures[name] for name in ("wrong", "agree", "found")] == [0.0, 1.0, 1.0]
    assert not told_apart.breaches([row], 20)
    bad = replace(row, figures={**row.figures, "agree": 0.9, "wrong": 0.5})
    assert len(told_apart.breaches([bad], 20)) == 2
