"""When a change over time is a finding about the drafter, and when it is the traffic."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.analyses import summary_of
from support.simulate import Truth

from benchmarks.calibration.changes import (
    TINY,
    WORLDS,
    ChangeWorld,
    moves,
    over_time,
    series_of,
)
from driftscope.analysis.figures.change_points import PROMPT, Changes, changes
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Answer, Finding, Severity
from driftscope.findings.first_screen import State
from driftscope.findings.rules_changes import (
    FELL_BELOW,
    contradicting,
    drop_by_label,
    drop_of,
    explanation_of,
    fall_of,
    severity_of,
    worst_drop,
)
from driftscope.pipeline import conclude

pytestmark = pytest.mark.slow

TRIALS, TABLE_TRIALS = 20, 12


@functools.cache
def _made(world: ChangeWorld) -> list[Changes | None]:
    return [changes(series_of(world, 300 + seed)) for seed in range(TRIALS)]


@pytest.mark.parametrize("name", WORLDS)
def test_a_drop_is_told_where_the_drafter_loses_and_nowhere_else(name: str) -> None:
    assert not over_time.breaches([over_time.row(name, TABLE_TRIALS)], TABLE_TRIALS)


@pytest.mark.parametrize("name", ["sessions of 5, no key", "sessions of 20, no key"])
def test_unknown_sessions_are_told_to_be_unknown(name: str) -> None:
    made = _made(WORLDS[name])
    texts = {explanation_of(found).why for found in made if found and moves(found)}
    assert any("session or traffic cannot be told from the drafter" in text for text in texts)


def test_a_changed_mix_is_told(tmp_path: Path) -> None:
    made = _made(WORLDS["day and night, labelled"])
    told = [found for found in made if found and moves(found)]
    assert any("moved with the mix" in explanation_of(found).why for found in told)


def test_a_drop_without_sessions_has_medium_severity() -> None:
    drops = [worst_drop(found) for found in _made(WORLDS["a step, independent requests"])]
    assert {severity_of(drop) for drop in drops if drop} == {Severity.MEDIUM}


def test_prompts_that_come_again_contradict_a_drop() -> None:
    made = _made(WORLDS["other traffic, canary"])
    assert sum(any(map(contradicting, found.points)) for found in made if found) >= TRIALS // 2


@pytest.mark.parametrize(
    "name", ["labels move apart", "labels drift apart", "a label of 20 % loses"]
)
def test_the_label_that_loses_is_named(name: str) -> None:
    drops = [drop_of(found) for found in _made(WORLDS[name])]
    assert {drop[2] for drop in drops if drop} <= {"a", ""}


def test_the_labels_that_lose_are_named_beside_those_that_do_not() -> None:
    """One rare label, one of two in five, or all of them lose."""
    labelled = ChangeWorld(requests=600, alike=0.0, own=0.6, opposite=-1.8)
    rare, large = replace(labelled, other_share=0.08), replace(labelled, other_share=0.4)
    every = replace(rare, opposite=-TINY, step=-1.2)
    clause = '; it shows under "a", and not under "b"'
    for world, label, words in ((rare, "a", ""), (large, "", clause), (every, "", "")):
        found = [drop for made in _made(world) if (drop := drop_of(made))]
        told = [(drop[2], drop_by_label(drop[0], drop[2])) for drop in found]
        assert told.count((label, words)) >= 0.75 * TRIALS


def _findings(run: RunSummary) -> dict[str, Finding]:
    return {finding.id: finding for finding in conclude([run]).findings}


def test_longer_answers_are_no_drop_of_the_drafter(tmp_path: Path) -> None:
    """Acceptance falls with the place in the answer, and answers become longer half-way."""
    longer = Truth(requests=200, rounds=8, longer=(0.5, 8.0), along=-0.35, between=0.3)
    same = replace(longer, longer=None, change=(0.5, -1.0))
    for truth, word in ((longer, "answer length"), (same, "")):
        found = _findings(summary_of(tmp_path / (word or "drop"), truth))["acceptance_drops"]
        assert (found.answer is Answer.CANNOT_TELL) == bool(word)
        assert found.severity is Severity.MEDIUM, "a fifth is lost, whatever the reason"
        differ = "the earlier and the later requests also differ in" in found.statement
        assert differ == bool(word) and word in found.statement


BUSIER = Truth(
    requests=128,
    rounds=20,
    batches=(*(1,) * 64, *(8,) * 8),
    batch=-0.6,
    conditional=(0.85,) * 7,
    growth=1.0,
    norm_output=True,
    sink=(0.3, 0.29),
    near=0.2,
    self_last=0.2,
)
"""Half-way, busy times begin, and acceptance falls with the batch size alone."""


def test_traffic_that_costs_a_fifth_asks_for_a_look(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", BUSIER)
    conclusions = conclude([run])
    found = {finding.id: finding for finding in conclusions.findings}
    assert not {"acceptance_drops", "healthy"} & set(found)
    moved = found["acceptance_moves"]
    assert moved.severity is Severity.MEDIUM
    assert "the mix of requests changed as a whole at that moment" in moved.statement
    assert "requests in batches of about 8 make up" in moved.statement
    assert conclusions.screen.lead.id == moved.id
    assert conclusions.screen.state is State.LOOK


def test_traffic_that_costs_less_is_for_information(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", replace(BUSIER, batch=-0.2))
    assert _findings(run)["acceptance_moves"].severity is Severity.INFO


def test_a_fall_is_what_the_alert_calls_one() -> None:
    """The report and the alert tell one story."""
    folder = files("driftscope.telemetry") / "dashboards" / "prometheus"
    rules = (folder / "driftscope.rules.yml").read_text("utf-8")
    ratio = re.escape("max_over_time(model:driftscope_acceptance_length:ratio[10m])")
    assert re.search(rf"{ratio} < bool {FELL_BELOW.value}\b", rules)


def test_prompts_that_came_are_told(tmp_path: Path) -> None:
    made = _made(replace(WORLDS["other traffic, canary"], known=True))
    falls = [fall for found in made if found and (fall := fall_of(found))]
    assert len(falls) >= 0.8 * TRIALS
    told = {fall: came for fall in falls for came in fall.newcomers if came.kind == PROMPT}
    assert len(told) >= 0.9 * len(falls)
    assert all(came.mean_length < 0.8 * fall.before for fall, came in told.items())


@pytest.mark.parametrize("whole", [True, False])
def test_traffic_that_changes_as_a_whole_cannot_be_told_from_the_drafter(whole: bool) -> None:
    """With some of each kind before and after, those of one kind are seen to accept as before."""
    series = series_of(ChangeWorld(requests=300, alike=0.0, own=0.6, step=-1.2), 1)
    late = np.arange(300) >= 150
    swapped = late if whole else late ^ (np.arange(300) % 10 == 0)
    words = "cannot be told from the drafter" if whole else "accept as before"
    mixed = np.where(swapped, -1.2, 0.0)
    rounds = series.rounds
    tokens = rounds * (3.0 + mixed) + np.random.RandomState(1).standard_normal(300) * rounds**0.5
    moved = changes(replace(series, tokens=tokens, labels=np.where(swapped, "night", "day")))
    explanation = explanation_of(moved)
    assert explanation is not None and words in explanation.why


def test_a_drop_is_told_with_what_is_left_at_the_same_mix(tmp_path: Path) -> None:
    truth = Truth(requests=160, rounds=20, change=(0.5, -1.5))
    run = summary_of(tmp_path / "run", truth)
    drop = _findings(run)["acceptance_drops"]
    assert "at the same mix of requests" in drop.statement
    assert drop.evidence["kept_high"] < 0.9
    assert "does not say which requests belong to one session" in drop.because
    flat = summary_of(tmp_path / "flat", replace(truth, change=None))
    assert not {"acceptance_drops", "acceptance_moves"} & set(_findings(flat))


@pytest.mark.parametrize("elsewhere", [-1.5, 0.0])
def test_a_fall_that_another_run_shows_on_the_same_prompts_is_theirs(
    tmp_path: Path, elsewhere: float
) -> None:
    truth = Truth(requests=96, rounds=12, change=(0.5, -1.5))
    runs = [
        summary_of(tmp_path / name, made)
        for name, made in (
            ("run", truth),
            ("other", replace(truth, seed=9001, change=(0.5, elsewhere))),
        )
    ]
    (drop,) = [
        finding
        for finding in conclude(runs).findings
        if finding.id == "acceptance_drops" and finding.runs == ("run",)
    ]
    assert drop.severity is (Severity.INFO if elsewhere else Severity.MEDIUM)
    assert ("other, which answered the same prompts, keeps" in drop.statement) == bool(elsewhere)
    assert drop.advice.startswith("Nothing to fix." if elsewhere else "Look at")


def test_prompts_that_do_not_decide_are_told_with_how_many_would() -> None:
    made = [found for found in _made(WORLDS["other traffic, canary"]) if found]
    told = [explanation_of(found) for found in made if moves(found)]
    unsure = [one.advice for one in told if one and "neither confirm nor exclude" in one.why]
    assert unsure and all("on both sides of the change would decide" in words for words in unsure)


def test_a_drop_with_an_update_of_the_weights_names_it(tmp_path: Path) -> None:
    truth = Truth(requests=240, rounds=12, change=(0.5, -1.5), updates=(0.2, 0.5))
    run = summary_of(tmp_path / "run", truth, by="weights")
    drop = _findings(run)["acceptance_drops"]
    assert drop.title == "Acceptance drops with an update of the weights"
    assert "the target got other weights at 20" in drop.statement
    assert drop.statement.endswith("(update 2 (step-2))")
    assert drop.advice.startswith("A drafter predicts the weights that it was trained with")
    assert [part.label for part in run.segments] == [
        "as started",
        "after update 1 (step-1)",
        "after update 2 (step-2)",
    ]


MANY = tuple((n + 0.5) / 20 for n in range(20))


@pytest.mark.parametrize(
    ("updates", "change", "named"),
    [
        ((0.5,), -1.5, True),
        ((0.2, 0.5, 0.8), -1.5, True),
        ((0.75,), -1.5, False),
        (MANY, -1.5, False),
        ((0.5,), 0.0, None),
    ],
    ids=["at the fall", "one of three", "elsewhere", "many: one is near by chance", "healthy"],
)
def test_an_update_is_named_only_if_the_fall_comes_with_it_by_more_than_chance(
    tmp_path: Path, updates: tuple[float, ...], change: float, named: bool | None
) -> None:
    truth = Truth(requests=400, rounds=12, change=(0.5, change), updates=updates)
    found = _findings(summary_of(tmp_path / "run", truth))
    drop = found.get("acceptance_drops")
    assert (drop and bool(drop.evidence["update"])) is named
