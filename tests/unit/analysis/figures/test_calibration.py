"""Confidence against acceptance: AUROC by definition, Brier's parts, planted temperatures."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from support.command import run_command
from support.simulate import Truth, simulate

from benchmarks.calibration.confidence import WORLDS, drawn
from driftscope.analysis.figures.calibration import calibrations
from driftscope.metrics.confidence import placements
from driftscope.pipeline import Inputs, analyze
from driftscope_reports.html import to_html


@pytest.mark.parametrize("seed", range(4))
def test_auroc_is_the_share_of_pairs_in_the_right_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    score = np.round(random.random(80), seed % 2 + 1)  # many ties
    hit = random.random(80) < 0.3 + 0.4 * score
    pairs = list(product(score[hit], score[~hit]))
    by_definition = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    assert placements(score, hit)[hit].mean() == pytest.approx(by_definition, rel=1e-12)
    assert placements(score, hit)[~hit].mean() == pytest.approx(by_definition, rel=1e-12)


def test_auroc_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(1)
    score = random.random(500)
    hit = random.random(500) < score
    expected = metrics.roc_auc_score(hit, score)
    assert placements(score, hit)[hit].mean() == pytest.approx(expected, rel=1e-12)


def test_planted_temperatures_come_back_and_the_parts_sum_up() -> None:
    world = WORLDS["too sure with depth"]
    made = calibrations(drawn(world, 3)[0])
    for at, planted in zip(made.by_depth, world.temperatures, strict=True):
        assert at.temperature_interval is not None
        assert at.temperature_interval.low <= planted <= at.temperature_interval.high
        parts = at.brier_reliability - at.brier_resolution + at.brier_uncertainty + at.brier_rest
        assert at.brier == pytest.approx(parts, rel=1e-12)
    sums = [
        sum(one.tokens for one in made.reliability if one.depth == at.depth) for at in made.by_depth
    ]
    assert sums == [at.tokens for at in made.by_depth]


def test_what_each_kind_of_text_wastes() -> None:
    rounds = drawn(WORLDS["kinds are off, their mix changes"], 1)[0]
    for of in calibrations(rounds).by_kind:
        mine = rounds.kind == of.kind
        thrown_away = rounds.drawn[mine].sum() - rounds.accepted[mine].sum()
        assert of.wasted == pytest.approx(thrown_away / rounds.drawn[mine].sum())


def test_the_page_says_it_in_one_line_and_a_gate_reads_it(tmp_path: Path) -> None:
    truth = Truth(k=3, requests=40, conditional=(0.7, 0.6, 0.5), miscalibration=0.5, rounds=30)
    run = simulate(tmp_path / "run", truth)
    analysis = analyze(Inputs(sources=[run], labels=["run"]))
    (found,) = [one for one in analysis.findings if one.id == "confidence_off"]
    page = to_html(analysis)
    assert found.statement[3:] in page and "Calibration by kind of text" not in page
    at = "confidence.calibration.by_depth[0]"
    for rule, code in ((f"{at}.auroc < 0.6", 0), (f"{at}.bias > 0.05", 3)):
        assert run_command("check", run, "--fail-on", rule).returncode == code
