"""Confidence against acceptance, and what a threshold, or no draft above a batch, would serve."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import RandomState
from support.command import run_command
from support.simulate import Cost, Truth, simulate

from benchmarks.calibration.confidence import WORLDS, drawn
from benchmarks.calibration.k_advice import TRUTHS, World, recorded
from benchmarks.calibration.what_if import ASKED, BATCHES, K, recorded_on, served, written
from benchmarks.calibration.what_if import true_gain as gain_in
from driftscope.analysis.advice import advise
from driftscope.analysis.cost import fit
from driftscope.analysis.figures.calibration import calibrations
from driftscope.analysis.policies import ORACLE, policies, threshold_words
from driftscope.findings.catalogue import conclude
from driftscope.metrics.confidence import placements
from driftscope.pipeline import Inputs, analyze, summarise
from driftscope.trace.reader import read_trace
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


WORLD = World(verify=TRUTHS["linear"], rates=np.full(12, 0.7), depth_ms=0.5, weights=BATCHES)


def test_thresholds_stand_in_the_order_in_which_they_serve() -> None:
    text = written(RandomState(3))
    whole = served(text, 0.0)
    model = fit([recorded(WORLD, k, RandomState(3)).cells for k in (K, 1)])
    assert model is not None
    made = policies(model, recorded_on(whole))
    found = {one.threshold: one.gain for one in made}
    true = {at: gain_in(WORLD, whole, served(text, at)) for at in ASKED}
    assert sorted(ASKED, key=lambda at: found[at].value) == sorted(ASKED, key=true.__getitem__)
    for at in ASKED:
        assert found[at].value == pytest.approx(true[at], abs=0.02)
        assert found[at].interval is not None
        assert found[at].interval.low <= true[at] <= found[at].interval.high
    (most,) = [one.gain.value for one in made if one.name == ORACLE]
    exact = gain_in(WORLD, whole, replace(whole, verified=whole.accepted))
    assert most == pytest.approx(exact, abs=0.01) and most > max(true.values())


def test_steps_of_one_k_do_not_tell_what_fewer_tokens_cost() -> None:
    model = fit([recorded(WORLD, K, RandomState(3)).cells])
    assert model is not None
    assert policies(model, recorded_on(served(written(RandomState(3)), 0.0))) == ()


TRUTH = Truth(
    k=4,
    requests=40,
    rounds=40,
    conditional=(0.8, 0.7, 0.6, 0.5),
    batches=(2, 8),
    cost=Cost(base_s=0.004, token_s=0.0006),
)


def test_advise_and_the_page_say_what_a_threshold_would_give(tmp_path: Path) -> None:
    """A token costs much here, so that fewer of them are faster."""
    runs = [simulate(tmp_path / f"{k}", replace(TRUTH, k=k)) for k in (4, 1)]
    told = run_command("advise", *runs)
    assert told.returncode == 0, told.stderr
    assert "threshold 0.9" in told.stdout and "no draft above a batch of 2" in told.stdout
    advice = json.loads(run_command("advise", *runs, "--json").stdout)
    assert [one["threshold"] for one in advice["policies"] if one["threshold"]][:2] == [0.3, 0.4]
    assert 0 <= advice["held_out"] < 0.05
    analysis = analyze(Inputs(sources=runs, labels=["four", "one"]))
    made = analysis.cases[0].advice
    assert made is not None
    words = threshold_words(made.policies, made.held_out)
    assert "confidence threshold" in words and words[1:] in to_html(analysis)
    shaken = threshold_words(made.policies, 0.2)
    assert shaken.startswith("whether") and "20%" in shaken


def test_a_run_that_was_trimmed_is_refused(tmp_path: Path) -> None:
    """What its rounds would have accepted beyond the cut is not known."""
    runs = [read_trace(simulate(tmp_path / f"{k}", replace(TRUTH, k=k))) for k in (4, 1)]
    rows = runs[0].verify.to_pandas()
    cut = (rows.verified == 4) & (rows.index % 3 == 0)
    rows.loc[cut, "verified"] = 2
    rows.loc[cut, "accepted"] = rows.accepted[cut].clip(upper=2)
    rows.loc[cut, "reason"] = "token_budget"
    verify = pa.Table.from_pandas(rows, schema=runs[0].verify.schema, preserve_index=False)
    whole, other = (summarise(trace, f"{n}") for n, trace in enumerate(runs))
    trimmed = summarise(replace(runs[0], verify=verify), "trimmed")
    asked = [advise(run, [other]) for run in (whole, trimmed)]
    assert [bool(made and made.policies) for made in asked] == [True, False]
    assert conclude([trimmed]).runs[0].fallback.cut_share > 0.01
