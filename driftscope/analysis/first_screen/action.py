"""Actions that the first screen asks for, and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.cost.advice_words import to_measure
from driftscope.analysis.cost.choice import WORTH_SAYING
from driftscope.analysis.cost.vllm_options import served_option
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.first_screen.claim import Claim, Topic, capital
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary

_SENTENCES = 2
"""Number of sentences of an advice on the first screen: the first may only name the subject."""
URGENT = (Severity.HIGH, Severity.MEDIUM)
"""Severities of findings that ask for an action, worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do, and why."""

    sentence: str
    option: str | None = None
    """Option to paste; None if there is none."""
    why: str = ""
    """Reason, a clause without a full stop; empty if nothing is to be done."""
    worth_tps: float | None = None
    """Gain in output tokens per second by the cost model; None if unknown."""


def switch(run: RunSummary, other: str, *, faster: bool) -> Action:
    """Return the advice to serve with the drafter of `run` instead of that of `other`; not
    `faster`: only its acceptance is known to be better."""
    if faster:
        return Action(
            sentence=f"Serve with the drafter and K of {run.label} instead of those of {other}.",
            option=served_option(run),
            why="it serves the same target faster",
        )
    return Action(
        sentence=f"Try the drafter of {run.label} instead of that of {other}, and compare the "
        "time per token under your own load.",
        option=served_option(run),
        why="it accepts more; which one serves faster cannot be told from these runs",
    )


def advice_of(finding: Finding, *, several: bool) -> Action:
    """Return what a finding advises."""
    about = f" ({listed(finding.runs)})" if several else ""
    return Action(
        sentence=f"{'. '.join(finding.advice.split('. ')[:_SENTENCES]).rstrip('.')}.",
        option=finding.option,
        why=f"{finding.title[:1].lower()}{finding.title[1:]}{about}",
        worth_tps=finding.cost_tps,
    )


def measured_next(advice: Advice | None) -> Action | None:
    """Return which K to measure next; None if no K is guessed to be faster by enough."""
    sentence = None if advice is None else to_measure(advice)
    if advice is None or sentence is None or advice.choice.next is None:
        return None
    if (advice.choice.next.guess or 0.0) < WORTH_SAYING:
        return None
    return Action(sentence=f"{sentence}.")


def to_record(claims: Sequence[Claim]) -> Action:
    """Return that nothing is to be changed, and what to record for the first question that cannot
    be answered, if there is one."""
    first = next((each for each in claims if each.record), None)
    if first is None:
        return Action(sentence="Nothing to change.")
    record = f"{capital(first.record)}."
    if first.topic is Topic.DATA:
        return Action(sentence=record)
    return Action(sentence=f"Nothing to change. {record}")
