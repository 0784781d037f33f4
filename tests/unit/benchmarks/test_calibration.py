"""Bounds of the calibration, and a small calibration that meets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.calibration import comparisons
from benchmarks.calibration.__main__ import TABLES, main
from benchmarks.calibration.causes import ABLATIONS, Ablated
from benchmarks.calibration.estimates import (
    CLUSTERS,
    COVERAGE,
    SHARED_STEPS,
    WORLDS,
    Coverage,
    clustered,
    drawn,
    mean_length,
    shared_steps_at,
)
from benchmarks.calibration.pairs import FALSE_CALLS, LABEL_MIX, MIXES, Calls, other_mixes
from benchmarks.calibration.table import Table
from benchmarks.calibration.within_request import WITHIN_REQUEST, Related
from driftscope.analysis.statistics.ratio import intervals


@pytest.mark.parametrize(
    ("called", "trials", "met"), [(0.05, 1000, True), (0.08, 1000, False), (0.1, 100, True)]
)
def test_false_calls_are_bounded_by_chance(called: float, trials: int, met: bool) -> None:
    lines = FALSE_CALLS.breaches([Calls(run="r", pairing="paired", called=called)], trials)
    assert lines == ([] if met else ["false_calls: r, paired: called 0.080, wanted at most 0.071"])


def test_an_interval_that_is_too_narrow_is_a_breach() -> None:
    row = Coverage(run="r", figure="length", truth=3.0, covered=0.9, bootstrap=0.9)
    (line,) = COVERAGE.breaches([row], 1000)
    assert line.startswith("coverage: r, length: coverage 0.900, wanted at least 0.9")


def test_a_missed_relation_is_a_breach() -> None:
    row = Related(
        world="w",
        relation=True,
        called=0.5,
        excluded=0.0,
        undecided=0.5,
        covered=0.95,
        inflated=1.0,
    )
    assert WITHIN_REQUEST.breaches([row], 400)


@pytest.mark.parametrize(
    ("made", "found", "off", "words"),
    [
        (True, 1.0, 0.0, None),
        (False, 0.04, 0.0, None),
        (True, 0.5, 0.0, "the part that the cause makes 0.500, wanted at least 0.7"),
        (False, 0.3, 0.0, "a part that the cause does not make 0.300, wanted at most 0.1"),
        (True, 1.0, -0.1, "error of the part -0.100, wanted"),
    ],
)
def test_a_cause_that_is_mistaken_is_a_breach(
    made: bool, found: float, off: float, words: str | None
) -> None:
    row = Ablated(world="w", part="states", made=made, seeds=50, loss=0.3, found=found, off=off)
    lines = ABLATIONS.breaches([row], 1000)
    assert len(lines) == (words is not None)
    assert words is None or (words in lines[0] and "ablations: w, states: " in lines[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "trials"),
    [
        ("gate", 60),
        ("within_request", 200),
        ("k_advice", 20),
        ("cut_anew", 2),
        ("ablations", 10),
        ("cut_drafts", 10),
        ("server_logs", 40),
        ("file_sums", 40),
        ("speed", 40),
    ],
)
def test_a_small_calibration_meets_its_bounds(table: str, trials: int) -> None:
    lines: list[str] = []
    code = main(["--trials", str(trials), "--only", table], say=lines.append)
    assert code == 0, [line for line in lines if line.startswith("breach")]


def test_a_calibration_that_breaches_a_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(trials: int) -> Iterator[Calls]:
        yield Calls(run=f"{trials} trials", pairing="paired", called=0.5)

    table = Table(name="gate", title="t", rows=bad, rates=FALSE_CALLS.rates)
    monkeypatch.setitem(TABLES, "gate", table)
    lines: list[str] = []
    assert main(["--trials", "100", "--only", "gate"], say=lines.append) == 1
    assert lines[-1].startswith("breach: gate: 100 trials, paired: called 0.500")


TRIALS = 40
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["16 prompts x 4", "8 prompts x 8", "20 prompts x 15 sessions"])
def test_intervals_over_clusters_hold_the_truth_and_equal_runs_do_not_differ(name: str) -> None:
    row = clustered(name, WORLDS[name], TRIALS)
    assert not CLUSTERS.breaches([row], TRIALS)
    assert row.by_request < 0.8, "requests of one prompt are not independent"
    assert row.design_effect > 2


def test_four_prompts_have_no_interval_however_often_they_are_asked() -> None:
    assert intervals(drawn(WORLDS["4 prompts x 10"], 1).rounds.length_ratio()) == (None,)


def test_the_truth_is_that_of_a_very_large_run() -> None:
    world = WORLDS["200 prompts x 1"]
    lengths = [drawn(world, seed).rounds.length_ratio().value[0] for seed in range(100)]
    assert sum(lengths) / len(lengths) == pytest.approx(mean_length(world), abs=0.03)


def test_another_mix_of_labels_is_no_difference_of_the_drafter() -> None:
    trials = 25
    rows = list(other_mixes(trials))
    assert [row.mix for row in rows] == list(MIXES)
    assert not LABEL_MIX.breaches(rows, trials)
    assert all(row.as_served > 0.8 for row in rows[1:]), "the mixes do differ"


def test_independent_times_lose_little() -> None:
    found = shared_steps_at(at_once=1, requests=160, trials=100)
    assert found.covered >= found.over_requests > 0.85
    assert 1.0 <= found.wider < 1.2


def test_times_of_requests_at_once_are_not_independent_and_intervals_over_them_a_breach() -> None:
    found = shared_steps_at(at_once=4, requests=320, trials=100)
    assert found.over_requests < 0.85 < found.covered
    assert found.wider > 1.5
    assert SHARED_STEPS.breaches([found], 400) == []
    (line,) = SHARED_STEPS.breaches([replace(found, covered=found.over_requests)], 400)
    assert line.startswith("shared_steps: 4, 320: coverage 0.")


def test_a_gate_takes_the_pairs_that_the_first_screen_takes() -> None:
    """The hardest prompts of a worse drafter have no rows: its pairs are worse all the same."""
    world = next(one for one in comparisons.WORLDS if one.name.startswith("A1"))
    row = comparisons.of_world(world, 1)
    assert (row.wrong, row.agree, row.found) == (0.0, 1.0, 1.0)
    assert not comparisons.COMPARISONS.breaches([row], 20)
    assert len(comparisons.COMPARISONS.breaches([replace(row, agree=0.9, wrong=0.5)], 20)) == 2
