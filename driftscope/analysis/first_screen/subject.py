"""The finding that badge, cause and first action of the first screen are about."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from driftscope.analysis.cost.vllm_options import NO_SPECULATION
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.first_screen.action import URGENT, Action, advice_of
from driftscope.analysis.first_screen.claim import capital
from driftscope.analysis.number_words import listed

MOST_ACTIONS = 3
"""Most actions on the first screen."""


class State(StrEnum):
    """Urgency of the first screen, most urgent first."""

    ACT = "act"
    LOOK = "look"
    TOO_LITTLE = "too little data"
    NOTHING_SEEN = "nothing seen"
    """No finding asks for anything, and some question could not be answered."""
    HEALTHY = "healthy"


_INSIDE = ("hidden_state_grows", "sink_lost", "attention_moves_to_chain")
"""Findings about the drafter's inside."""


def subject_of(findings: Sequence[Finding]) -> Finding | None:
    """Return the most urgent finding: the first one of the worst severity that asks for something,
    unless its confidence is low; None if there is none. Findings about the drafter's inside come
    last within their severity: they explain a loss, and are none by themselves."""
    sure = [each for each in findings if each.confidence is not Trust.LOW]
    ordered = sorted(sure, key=lambda each: each.id in _INSIDE)
    urgent = (each for severity in URGENT for each in ordered if each.severity is severity)
    return next(urgent, None)


def state_of(subject: Finding | None) -> State | None:
    """Return what a finding asks for; None without one."""
    if subject is None:
        return None
    return State.ACT if subject.severity is Severity.HIGH else State.LOOK


def cause(subject: Finding | None, *, several: bool) -> str:
    """Return the finding as a sentence, with its runs if there are `several`; "" without one."""
    if subject is None:
        return ""
    about = f"{listed(subject.runs)}: " if several else ""
    return f"{about}{capital(subject.title)}: {subject.statement}."


def actions_about(
    subject: Finding | None, findings: Sequence[Finding], *, several: bool
) -> tuple[Action, ...]:
    """Return what the subject advises, then what other urgent findings do, without repetition. Of a
    drafter that is to be turned off, nothing else is advised."""
    if subject is not None and subject.option == NO_SPECULATION:
        return (advice_of(subject, several=several),)
    sure = [
        each
        for each in findings
        if each.severity in URGENT and each.confidence is not Trust.LOW and each is not subject
    ]
    ranked = [*([subject] if subject else []), *sure]
    kept: dict[str, Action] = {}
    for each in ranked:
        action = advice_of(each, several=several)
        kept.setdefault(action.option or action.sentence, action)
    return tuple(kept.values())[:MOST_ACTIONS]
