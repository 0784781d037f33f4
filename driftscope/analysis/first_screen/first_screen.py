"""The first screen: a headline, a few claims in a fixed order, and what to do.

Statements about speed and acceptance come first, and what happens inside the drafter last: it
explains a loss, and is none by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftscope.analysis.cost.vllm_options import served_option
from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.first_screen.acceptance import acceptance
from driftscope.analysis.first_screen.action import (
    Action,
    measured_next,
    switch,
    to_record,
)
from driftscope.analysis.first_screen.claim import TITLES, Answer, Claim, Topic, capital
from driftscope.analysis.first_screen.data import data
from driftscope.analysis.first_screen.inside import inside
from driftscope.analysis.first_screen.key_figure import KeyFigure, key_figures
from driftscope.analysis.first_screen.losses import losses
from driftscope.analysis.first_screen.speed import speed, speed_against
from driftscope.analysis.first_screen.subject import (
    MOST_ACTIONS,
    State,
    actions_about,
    cause,
    state_of,
    subject_of,
)
from driftscope.analysis.first_screen.wrong_tokens import wrong_tokens
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.sampling_mode import tokens_are_wrong

__all__ = ["FirstScreen", "State", "first_screen_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """First screen of one analysis."""

    state: State
    headline: str
    """Sentence that alone must carry the message."""
    claims: tuple[Claim, ...]
    """Every claim, by topic; () for replays."""
    actions: tuple[Action, ...]
    """Actions, most urgent first, at least one."""
    cause: str = ""
    """Finding that badge and first action are about, as a sentence; "" if the headline tells it."""
    figures: tuple[KeyFigure, ...] = ()
    """Figures of the run that the headline is about."""

    @property
    def action(self) -> Action:
        """First action."""
        return self.actions[0]

    @property
    def lines(self) -> tuple[tuple[Topic, tuple[str, ...]], ...]:
        """Topic and sentences of each line below the headline, which is not repeated.

        Sentences that are equal for several runs, and what to record, stand once.
        """
        rows = []
        for topic in Topic:
            about = [claim for claim in self.claims if claim.topic is topic]
            texts = [text for text in self._texts(about) if text not in self.headline]
            records = dict.fromkeys(f"{capital(each.record)}." for each in about if each.record)
            if texts:
                rows.append((topic, (*texts, *records)))
        return tuple(rows)

    def _texts(self, claims: Sequence[Claim]) -> list[str]:
        """Return the sentences of claims, with the runs that each is about if there are several."""
        if len({claim.run for claim in self.claims}) == 1:
            return [f"{capital(claim.sentence)}." for claim in claims]
        runs: dict[str, list[str]] = {}
        for claim in claims:
            runs.setdefault(claim.sentence, []).append(claim.run)
        return [f"{listed(labels)}: {sentence}." for sentence, labels in runs.items()]

    @property
    def answers(self) -> tuple[tuple[Topic, Answer], ...]:
        """Worst answer on each topic, among those of all runs; claims that compare two runs count
        for acceptance only."""
        judged = [
            claim for claim in self.claims if claim.topic is not Topic.SPEED or not claim.reference
        ]
        answered = ((topic, [c.answer for c in judged if c.topic is topic]) for topic in Topic)
        return tuple((topic, min(all_of, key=_WORST.index)) for topic, all_of in answered if all_of)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Headline, cause, lines and action as sentences."""
        lines = (" ".join(texts) for _, texts in self.lines)
        said = (self.headline, self.cause, *lines, self.action.sentence)
        return tuple(each for each in said if each)

    def titled(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return name and sentences of each line."""
        return tuple((TITLES[topic], texts) for topic, texts in self.lines)


_WORST = (Answer.NO, Answer.CANNOT_TELL, Answer.YES, Answer.FIGURE)


def first_screen_of(cases: Sequence[Case], findings: Sequence[Finding]) -> FirstScreen:
    """Return the first screen of the cases, at least one; `findings` are ranked.

    Badge and first action are about one thing: what the headline says, if it asks for something, or
    else the most urgent finding, which is then the cause below the headline.
    """
    claims = _claims(cases, findings)
    several = len(cases) > 1
    lead = _lead(claims)
    about = _about(lead, findings)
    if about is not None and not lead.reference:
        lead = _lead([each for each in claims if each.run in about.runs] or claims)
    return FirstScreen(
        state=_state(lead, about, claims, findings),
        headline=_headline(lead, several),
        claims=tuple(claims),
        cause="" if _asks(lead) else cause(about, several=several),
        actions=_actions(cases, findings, claims, lead, about),
        figures=_figures(cases, lead),
    )


def _claims(every: Sequence[Case], findings: Sequence[Finding]) -> list[Claim]:
    cases = [case for case in every if not tokens_are_wrong(case.run)]
    return [
        *(data(case.run) for case in cases),
        *(wrong_tokens(case.run) for case in every if tokens_are_wrong(case.run)),
        *(claim for case in cases if (claim := speed_against(case))),
        *(speed(case) for case in cases),
        *(acceptance(case) for case in cases),
        *(claim for case in cases if (claim := losses(case.run, findings))),
        *(claim for case in cases if (claim := inside(case.run))),
    ]


def _lead(claims: Sequence[Claim]) -> Claim:
    """Return the claim for the headline: too little data, then a drafter that accepts nothing,
    then decided claims on speed and acceptance, the bad ones first, then figures."""
    return min(claims, key=_rank)


def _rank(claim: Claim) -> tuple[int, float]:
    no, yes = claim.answer is Answer.NO, claim.answer is Answer.YES
    order = (
        claim.topic is Topic.DATA and no,
        claim.topic is Topic.ACCEPTANCE and no and not claim.reference,
        claim.topic is Topic.SPEED and yes and bool(claim.reference),
        claim.topic is Topic.SPEED and no,
        claim.topic is Topic.ACCEPTANCE and no,
        claim.topic is Topic.SPEED and yes,
        claim.topic is Topic.ACCEPTANCE and bool(claim.reference) and yes,
        claim.topic is Topic.ACCEPTANCE,
    )
    place = order.index(True) if True in order else len(order)
    return place, -(claim.estimate or 0.0) if yes else claim.estimate or 0.0


def _headline(lead: Claim, several: bool) -> str:
    text = lead.text(several)
    return f"Too little to conclude. {text}" if lead.topic is Topic.DATA else text


def _asks(lead: Claim) -> bool:
    """Return whether the headline itself asks for something."""
    return lead.answer is Answer.NO or _better(lead) is not None


def _about(lead: Claim, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that badge and first action are about; None if there is none, or if the
    headline compares two runs and says which to serve."""
    if lead.topic is Topic.DATA or _better(lead) is not None:
        return None
    known = _ABOUT.get(lead.topic, ()) if lead.answer is Answer.NO else ()
    same = (each for each in findings if each.id in known and lead.run in each.runs)
    return next(same, None) or subject_of(findings)


_ABOUT = {
    Topic.ACCEPTANCE: ("wrong_tokens", "nothing_accepted", "acceptance_low"),
    Topic.SPEED: ("slower_than_none", "nothing_accepted"),
}
"""Findings that tell what to do if the claim on a topic is bad."""


def _state(
    lead: Claim, about: Finding | None, claims: Sequence[Claim], findings: Sequence[Finding]
) -> State:
    """Return the state: of the headline if it asks for something, or else of the finding that it is
    about."""
    if lead.topic is Topic.DATA:
        return State.TOO_LITTLE
    if lead.answer is Answer.NO or (_better(lead) and lead.topic is Topic.SPEED):
        return State.ACT
    if _better(lead):
        return State.LOOK
    if asked := state_of(about):
        return asked
    if any(claim.answer is Answer.CANNOT_TELL for claim in claims):
        return State.NOTHING_SEEN
    healthy = {run for f in findings if f.id == "healthy" for run in f.runs}
    return State.HEALTHY if {claim.run for claim in claims} <= healthy else State.NOTHING_SEEN


def _actions(
    cases: Sequence[Case],
    findings: Sequence[Finding],
    claims: Sequence[Claim],
    lead: Claim,
    about: Finding | None,
) -> tuple[Action, ...]:
    """Return what to do: switch to the run that the headline calls faster, and what its findings
    advise; or else what the findings advise, or else which K to
    measure, or else what to record."""
    if lead.topic is Topic.DATA:
        return (to_record([lead]),)
    several, better = len(cases) > 1, _better(lead)
    runs = {case.run.label: case.run for case in cases}
    left = [each for each in findings if not _is_served(each, runs)]
    if better is None or better[0] not in runs:
        alone = None if several else measured_next(cases[0].advice)
        return actions_about(about, left, several=several) or (alone or to_record(claims),)
    first = switch(runs[better[0]], better[1], faster=lead.topic is Topic.SPEED)
    own = [each for each in left if each.runs == (better[0],)]
    return (first, *actions_about(None, own, several=several))[:MOST_ACTIONS]


def _is_served(finding: Finding, runs: Mapping[str, RunSummary]) -> bool:
    """Return whether a finding proposes the option with which its run was served."""
    served = [served_option(runs[label]) for label in finding.runs if label in runs]
    return finding.option is not None and finding.option in served


def _figures(cases: Sequence[Case], lead: Claim) -> tuple[KeyFigure, ...]:
    """Return the figures of the run that the headline is about, beside the run that it is compared
    with; of the first run and the one compared with it."""
    case = next(each for each in cases if each.run.label == lead.run)
    compared = (each.run for each in cases if each.reference is case.run)
    return key_figures(case, case.reference or next(compared, None))


def _better(lead: Claim) -> tuple[str, str] | None:
    """Return which of two runs the headline calls faster, or better accepted, and the other one;
    None if it calls neither so."""
    pair = lead.run, lead.reference
    if not lead.reference or lead.answer is Answer.CANNOT_TELL or lead.interval is None:
        return None
    if lead.answer is Answer.NO:
        return pair[::-1]
    equal = 1.0 if lead.topic is Topic.SPEED else 0.0
    return pair if lead.interval.low > equal else None
