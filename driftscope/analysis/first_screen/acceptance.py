"""Whether acceptance is what it was: compared with another run, or as a figure."""

from __future__ import annotations

import math

from driftscope.analysis.compare.run_comparison import LENGTH, Comparison
from driftscope.analysis.findings.dead_drafter import (
    NOTHING_BELOW,
    accepted_once,
    judge,
    none_accepted,
)
from driftscope.analysis.findings.finding import Trust
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.first_screen.confounders import confounders, doubt, to_match
from driftscope.analysis.number_words import number, percent
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary

NO_WORSE = 0.05
"""Equivalence margin: an acceptance length that is surely less than this share below the other
run's is no worse. It is the margin that docs/check.md proposes for `no_worse`."""
MOST_MORE = 100.0
"""Largest factor by which more requests are proposed: beyond it no figure is given."""


def acceptance(case: Case) -> Claim:
    """Return whether acceptance is no worse than in the run that it is compared with; without one,
    the acceptance length as a figure."""
    run = case.run
    if run.acceptance.marginal[0] < NOTHING_BELOW:
        return _dead(run)
    compared = None if case.comparison is None else _relative(case.comparison)
    if case.comparison is None or compared is None:
        return _figure(run)
    return _compared(case, case.comparison, *compared)


def _relative(comparison: Comparison) -> tuple[float, Interval] | None:
    """Return the change of the acceptance length as a share of the reference's, with its interval;
    None without an interval."""
    at = comparison.at(LENGTH)[0]
    if at.interval is None or not at.first > 0:
        return None
    interval = Interval.of(at.interval.low / at.first, at.interval.high / at.first)
    return None if interval is None else (at.difference / at.first, interval)


def _compared(case: Case, comparison: Comparison, change: float, interval: Interval) -> Claim:
    others, change_is = confounders(case), no_worse(interval)
    answer = Answer.CANNOT_TELL if others else change_is
    other = comparison.first
    at = comparison.at(LENGTH)[0]
    verb = {
        Answer.YES: f"acceptance is {'better than' if interval.low > 0 else 'no worse than'}",
        Answer.NO: "acceptance is worse than",
        Answer.CANNOT_TELL: "it cannot be told whether acceptance is worse than",
    }[change_is]
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=case.run.label,
        question=f"Is the acceptance length at most {percent(NO_WORSE)} below the other run's?",
        answer=answer,
        sentence=f"{verb} {other}'s: {number(at.second)} tokens per round, compared with "
        f"{number(at.first)} ({100 * change:+.0f}%, {100 * interval.low:+.0f}% to "
        f"{100 * interval.high:+.0f}%){doubt(others)}",
        estimate=change,
        interval=interval,
        reference=other,
        record=_wanted(comparison, change, interval, others)
        if answer is Answer.CANNOT_TELL
        else "",
    )


def no_worse(change: Interval) -> Answer:
    """Return whether a relative change is surely above, or surely below, minus NO_WORSE."""
    if change.low > -NO_WORSE:
        return Answer.YES
    return Answer.NO if change.high < -NO_WORSE else Answer.CANNOT_TELL


def _wanted(comparison: Comparison, change: float, interval: Interval, others: list[str]) -> str:
    return to_match(others) if others else _more(comparison, change, interval)


def _more(comparison: Comparison, change: float, interval: Interval) -> str:
    half, away = (interval.high - interval.low) / 2, abs(change + NO_WORSE)
    factor = math.inf if not away else (half / away) ** 2
    if factor > MOST_MORE:
        return "record more requests of the same prompts"
    wanted = math.ceil(min(comparison.requests) * max(factor, 1.0) / 10) * 10
    return f"record about {wanted:,} requests of the same prompts in each run"


def _figure(run: RunSummary) -> Claim:
    spread, length = run.acceptance.mean_length_interval, run.acceptance.mean_length
    around = "no 95% interval" if spread is None else f"{spread.low:.2f} to {spread.high:.2f}"
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="How many tokens does a round yield?",
        answer=Answer.FIGURE,
        sentence=f"a round yields {number(length)} tokens ({around}) of at most {run.k + 1}",
        estimate=length,
        interval=spread,
    )


def _dead(run: RunSummary) -> Claim:
    sure = judge(run)[0] is not Trust.LOW
    little = "nothing" if not accepted_once(run) else "next to nothing"
    cost = "speculation costs time and gives nothing" if sure else "too few rounds to be sure"
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="Is any draft token accepted?",
        answer=Answer.NO if sure else Answer.CANNOT_TELL,
        sentence=f"{little} is accepted: {cost} ({none_accepted(run)})",
        estimate=run.acceptance.marginal[0],
        record="" if sure else "record more rounds to be sure",
    )
