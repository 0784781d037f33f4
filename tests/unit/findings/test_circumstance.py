"""Findings about circumstances: context, label, load, kinds of text; where one would mislead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.analyses import summary_of
from support.simulate import Truth

from benchmarks.calibration.causes import (
    FARTHER,
    HARDER,
    LONG,
    LOWER,
    SHORT,
    TEXT_BASE,
    UPPER,
    WIDE,
    WORLDS,
    case_of,
    case_of_text,
    groups_of,
    rules_of_run,
    two_labels,
)
from driftscope.analysis.statistics.strata import Cells, context_within_label, labels_within_context
from driftscope.findings.catalogue import CATALOGUE
from driftscope.findings.finding import Finding, Severity, Trust
from driftscope.findings.rules_circumstances import region_costs
from driftscope.pipeline import Analysis, conclude

TRIALS = 30


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_a_cause_is_named_where_it_is_and_can_be_separated_and_nowhere_else(world: str) -> None:
    assert not rules_of_run.breaches([rules_of_run.row(world, TRIALS)], TRIALS)


def _found(analysis: Analysis, name: str) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.id == name]


def test_the_finding_says_what_to_record(tmp_path: Path) -> None:
    analysis = conclude([summary_of(tmp_path / "run", two_labels(SHORT, LONG, HARDER))])
    (finding,) = _found(analysis, "context_or_label")
    assert finding.severity is Severity.INFO
    assert finding.confidence is Trust.LOW
    assert '"chat" has contexts of 64 to ' in finding.statement
    assert "does not show which of the two is the reason" in finding.statement
    assert "Record prompts of each label in contexts of the same lengths" in finding.advice
    for name in ("long_context_collapse", "template_sensitivity"):
        assert not _found(analysis, name)
        assert not CATALOGUE[name].need.met(analysis.cases[0]), "check reports it as undecided"


def test_a_trace_gives_what_the_simulated_groups_give(tmp_path: Path) -> None:
    """The worlds above are sums without files: the same run, read from a trace, agrees."""
    truth = two_labels(LOWER, UPPER, HARDER, context=FARTHER)
    read = summary_of(tmp_path / "run", truth).groups
    drawn = groups_of(truth)
    (mine,), (theirs,) = read.labels_within_context, drawn.labels_within_context
    pairs = [(mine, theirs), (read.context_within_label, drawn.context_within_label)]
    for a, b in pairs:
        assert (a.first, a.second, a.strata) == (b.first, b.second, b.strata)
        assert (a.kept, a.p) == pytest.approx((b.kept, b.p))
    assert read.contexts_of_labels == drawn.contexts_of_labels
    assert [group.rounds for group in read.label] == [group.rounds for group in drawn.label]


OTHER = 900_000
"""Offset of the seeds of a second drafter on the same prompts."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "mine", "severity"),
    [
        (HARDER, HARDER, Severity.INFO),
        (HARDER, 2.5 * HARDER, Severity.MEDIUM),
        (0.0, HARDER, Severity.MEDIUM),
        (None, HARDER, Severity.INFO),
    ],
    ids=["both lose alike", "this one loses more", "the reference loses nothing", "one run"],
)
def test_a_label_is_a_fault_of_the_drafter_only_where_another_one_loses_less(
    theirs: float | None, mine: float, severity: Severity
) -> None:
    said: list[Severity] = []
    for trial in range(TRIALS):
        seeds = {"seed": 10_000 + trial, "prompts_seed": 50_000 + trial}
        first = two_labels(WIDE, WIDE, theirs or 0.0, **seeds)
        seeds["seed"] += OTHER
        second = two_labels(WIDE, WIDE, mine, **seeds)
        case = case_of(second, reference=None if theirs is None else first)
        finding = CATALOGUE["template_sensitivity"](case)
        if finding is not None:
            said.append(finding.severity)
    assert len(said) >= 0.9 * TRIALS
    assert said.count(severity) >= 0.9 * len(said)


def test_long_contexts_in_which_nothing_is_accepted_collapse() -> None:
    """No request differs from another there, so that their variance is 0."""
    request = np.repeat(np.arange(40), 2)
    context = np.tile([0, 1], 40)
    rounds = np.full(80, 20.0)
    tokens = np.where(context == 0, 50.0 + request % 3, 20.0)
    cells = Cells(
        request=request, label=np.zeros(80, int), context=context, tokens=tokens, rounds=rounds
    )
    found = context_within_label(cells, ["short", "long"], ["chat"])
    assert found.kept == 0
    assert found.kept_interval.high < 0.01


def test_one_request_with_most_rounds_decides_nothing() -> None:
    request = np.arange(40)
    rounds = np.where(request == 0, 5000.0, 10.0)
    cells = Cells(
        request=request,
        label=(request >= 20).astype(int),
        context=np.zeros(40, int),
        tokens=np.where(request < 20, 3.0, 1.5) * rounds,
        rounds=rounds,
    )
    (found,) = labels_within_context(cells, ["all"], ["chat", "code"])
    assert found.kept_interval is None
    assert found.p is None


def test_weights_are_those_of_mantel_and_haenszel() -> None:
    """By hand: two strata with 10 + 30 and 30 + 10 rounds each, weights 7.5 and 7.5."""
    label, context = np.repeat([0, 1, 0, 1], 10), np.repeat([0, 0, 1, 1], 10)
    rounds = np.repeat([1.0, 3.0, 3.0, 1.0], 10)
    length = np.repeat([3.0, 2.0, 2.0, 1.5], 10)
    cells = Cells(
        request=np.arange(40), label=label, context=context, tokens=length * rounds, rounds=rounds
    )
    (found,) = labels_within_context(cells, ["short", "long"], ["chat", "code"])
    assert (found.first, found.second) == ("chat", "code")
    assert found.first_length == pytest.approx(2.5)
    assert found.second_length == pytest.approx(1.75)
    assert found.kept == pytest.approx(0.5)


def of(json_share: float, shift: float) -> Truth:
    """Return answers of prose and this share of JSON, which is harder by `shift`."""
    return replace(TEXT_BASE, regions={"prose": (1 - json_share, 0.0), "json": (json_share, shift)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("json_share", "shift", "words"), [(0.25, -1.6, "in JSON ("), (0.1, 1.6, "in prose (")]
)
def test_a_kind_that_accepts_less_is_named_be_it_the_exception_or_the_most_frequent_one(
    json_share: float, shift: float, words: str
) -> None:
    found = region_costs(case_of_text(of(json_share, shift)))
    assert found.statement.startswith(words) and found.severity == "info"
    assert (found.evidence["share_of_rounds"] < 0.5) is (words == "in JSON (")


@pytest.mark.slow
def test_a_kind_with_too_few_rounds_changes_little() -> None:
    assert region_costs(case_of_text(of(0.01, -1.6))) is None
