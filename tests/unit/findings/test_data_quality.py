"""Warnings about rounds that were not drafted, or not as deep as others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.simulate import Truth, simulate

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.rules_data import notes_on
from driftscope.json_report import figures_of
from driftscope.pipeline import summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import UndraftedReason
from driftscope_reports.sections_inside import acceptance

TRUTH = Truth(k=4, requests=240, rounds=30, batches=(2, 6), k_by_batch=((3, 4), (6, 2)))
"""K = 4 for few requests, K = 2 for many."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("lengths") / "run", TRUTH))


def _messages(run: RunSummary) -> dict[str, str]:
    return {each.id: each.statement for each in notes_on(run) if each.affects == "acceptance"}


def _true_conditional() -> np.ndarray:
    marginal = TRUTH.marginal()
    return marginal / np.append(1.0, marginal[:-1])


def _without(trace: Trace, *records: str) -> Trace:
    return replace(trace, **{name: getattr(trace, name).slice(0, 0) for name in records})


def test_two_k_by_step_rows_are_one_run_with_a_table_for_each(trace: Trace) -> None:
    run = summarise(trace, "run")
    assert [part.k for part in run.acceptance.by_k] == [2, 4]
    assert "rounds drafted K = 2 and 4" in _messages(run)["several_k"]
    names = [series.name for series in acceptance([run])[0].chart.data]
    assert names[0] == "run, as served"


def test_without_step_rows_depths_count_only_rounds_that_drafted_them(trace: Trace) -> None:
    """Counted over all rounds, depth 3 would lose the rounds that drafted 2."""
    run = summarise(_without(trace, "step", "draft"), "run")
    assert not run.mixed
    for depth in (2, 3):
        estimate = run.acceptance.conditional[depth]
        assert estimate == pytest.approx(_true_conditional()[depth], abs=0.03)
    assert run.acceptance.counted[2] < 0.7 * run.acceptance.marginal[2]
    assert "drafted fewer than K tokens" in _messages(run)["short_rounds"]


def test_lengths_that_the_drafter_chooses_are_named(trace: Trace) -> None:
    copied = replace(trace, manifest=replace(trace.manifest, method="ngram"))
    run = summarise(_without(copied, "step", "draft"), "run")
    assert "chosen by the drafter (ngram)" in _messages(run)["short_rounds"]
    names = [series.name for series in acceptance([run])[0].chart.data]
    assert names[0] == "run, length chosen by the drafter"


@pytest.mark.parametrize("reason", UndraftedReason.COUNTED)
def test_steps_that_were_not_drafted_are_no_rejected_rounds(tmp_path: Path, reason: str) -> None:
    plain = Truth(requests=60, rounds=30)
    run = summarise(read_trace(simulate(tmp_path / "run", _undrafted(plain, reason))), "run")
    assert run.fallback.by_reason[reason] == run.fallback.counted > 0
    assert figures_of(run)["fallback"]["counted"] == run.fallback.counted
    message = _messages(run)["counted_undrafted"]
    assert reason.replace("_", " ") in message
    accepted = run.acceptance.mean_length * run.rounds - run.rounds
    low = 1 + accepted / (run.rounds + run.fallback.counted)
    assert f"down to {low:.2f} instead of {run.acceptance.mean_length:.2f}" in message


def test_steps_left_out_on_purpose_are_no_doubt(tmp_path: Path) -> None:
    truth = _undrafted(Truth(requests=60, rounds=30), "no_draft")
    run = summarise(read_trace(simulate(tmp_path / "run", truth)), "run")
    assert run.fallback.counted == 0
    assert "counted_undrafted" not in _messages(run)


def _undrafted(truth: Truth, reason: str) -> Truth:
    return replace(truth, undrafted={reason: 0.15})


def test_length_that_goes_with_ease_is_said(trace: Trace) -> None:
    run = summarise(trace, "run")
    assert run.independence is not None
    assert "length_goes_with_ease" not in _messages(run)
    few = replace(run.independence, clusters=60, noun="prompt", length_correlation=-0.52)
    message = _messages(replace(run, independence=few))["length_goes_with_ease"]
    assert "long answers are also the harder ones (correlation -0.52 over 60 prompts)" in message
    assert "Record 100 prompts or more" in message
