"""Actions that the first screen asks for, and their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from driftscope.analysis.advice import (
    NO_SPECULATION,
    WORTH_SAYING,
    Advice,
    served_option,
    to_measure,
)
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.number_words import ks_of, listed, milliseconds, number, percent
from driftscope.analysis.replays import NOT_RECORDED, Cell, ReplaySummary
from driftscope.analysis.statistics.ratio import FEW_REQUESTS, PairedRatio
from driftscope.analysis.summary.run_summary import RunSummary, tokens_are_wrong
from driftscope.findings.case import Case
from driftscope.findings.finding import (
    TITLES,
    Answer,
    Claim,
    Finding,
    Severity,
    Topic,
    Trust,
    capital,
)
from driftscope.findings.rules_attention import inside
from driftscope.findings.rules_circumstances import losses
from driftscope.findings.rules_compare import acceptance
from driftscope.findings.rules_data import FEWEST_REQUESTS, data
from driftscope.findings.rules_replays import replay_sentences, without_interval
from driftscope.findings.rules_speed import model_ratio, speed, speed_against, speed_ratio
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.latency import CLIENT_TPOT, PREDICTED_TPOT, TPOT
from driftscope.vocabulary import Ended

__all__ = ["FirstScreen", "State", "first_screen_of"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of the first screen."""

    value: str
    unit: str
    reference: str
    """Words for what the figure is compared with."""
    meaning: str
    """Definition of the figure."""


def key_figures(case: Case, other: RunSummary | None) -> tuple[KeyFigure, ...]:
    """Return time per token, tokens per round and K of a run, beside those of the `other` run, or
    without one beside what the run itself shows."""
    return _time(case, other), _length(case.run, other), _drafted(case)


def _time(case: Case, other: RunSummary | None) -> KeyFigure:
    return KeyFigure(
        value=milliseconds(case.run.latency.tpot_s),
        unit="per output token",
        reference=_time_reference(case, other),
        meaning=TPOT.meaning,
    )


def _time_reference(case: Case, other: RunSummary | None) -> str:
    mine = case.run.latency
    if case.plain is not None and case.plain.latency.tpot_s is not None:
        return f"without speculation {_beside(case.plain.latency, mine)}"
    if other is not None and other.latency.tpot_s is not None:
        return f"{other.label} {_beside(other.latency, mine)}"
    ratio = None if case.advice is None else model_ratio(case.advice)
    if ratio is None or mine.tpot_s is None:
        return "no run to compare it with"
    least, most = (milliseconds(end * mine.tpot_s) for end in (ratio[1].low, ratio[1].high))
    return f"without speculation {least.removesuffix(' ms')} to {most}, by bounds"


def _beside(other: Latency, mine: Latency) -> str:
    """Return the other run's time per token, and the change from it to this run's; a change that
    may be none is called so."""
    ratio = speed_ratio(other, mine)
    doubtful = ratio is not None and ratio[1].low <= 1.0 <= ratio[1].high
    change = _change(mine.tpot_s, other.tpot_s, doubtful=doubtful)
    return f"{milliseconds(other.tpot_s)}{change}"


def _change(mine: float | None, other: float | None, *, doubtful: bool = False) -> str:
    if mine is None or not other:
        return ""
    share = mine / other - 1.0
    size = f"{100 * abs(share):.0f}%"
    doubt = ", not certain" if doubtful and size != "0%" else ""
    return f" ({'−' if share < 0 else '+'}{size}{doubt})"


def _length(run: RunSummary, other: RunSummary | None) -> KeyFigure:
    length, moved = run.acceptance.mean_length, run.changes and run.changes.points
    if other is not None:
        theirs = other.acceptance.mean_length
        reference = f"{other.label} {number(theirs)}{_change(length, theirs)}"
    elif run.changes is not None and moved:
        reference = f"before it changed: {number(run.changes.levels[0].mean_length)}"
    else:
        reference = f"at most {run.k + 1}, without speculation 1"
    return KeyFigure(
        value=number(length),
        unit="tokens per round",
        reference=reference,
        meaning=MEAN_LENGTH.meaning,
    )


def _drafted(case: Case) -> KeyFigure:
    return KeyFigure(
        value=ks_of(case.run.ks),
        unit="draft tokens per round",
        reference=_k_reference(case.run, case.advice),
        meaning=PREDICTED_TPOT.meaning,
    )


def _k_reference(run: RunSummary, advice: Advice | None) -> str:
    if advice is None or (advice.doubt is not None and not advice.none_is_faster):
        return "which K is fastest is not known"
    if advice.none_is_faster:
        return "no speculation serves faster"
    best, gain = advice.overall.best_k, advice.overall.gain
    if best == run.k and not run.mixed:
        return "no other K is predicted to be faster"
    if advice.worth_it:
        return f"K = {best} is predicted {percent(gain.value)} faster"
    return f"K = {best} may be faster; not certain"


def wrong_tokens(run: RunSummary) -> Claim:
    """Return that nothing can be concluded from a run whose tokens are wrong."""
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="Are the tokens right?",
        answer=Answer.NO,
        sentence="the engine returns wrong tokens at temperature > 0: this run says nothing about "
        "the drafter",
    )


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


_RECORD = f"Send {FEW_REQUESTS} or more requests of different prompts."
_ROWS = "To conclude more, replay prompts with `driftscope replay`, or record requests one by one."


def replay_screen_of(replays: Sequence[ReplaySummary], findings: Sequence[Finding]) -> FirstScreen:
    """Return the first screen of replays, at least one; `findings` are ranked."""
    headline, few = replay_sentences(replays)[0], _answered(replays[0]) < FEWEST_REQUESTS
    subject = None if few else subject_of(findings)
    actions = actions_about(subject, findings, several=len(replays) > 1)
    few_words = _RECORD if replays[0].has_rows else _ROWS
    nothing = Action(sentence=few_words if few else "Nothing to change.")
    return FirstScreen(
        state=State.TOO_LITTLE if few else state_of(subject) or State.NOTHING_SEEN,
        headline=f"Too little to conclude. {headline}" if few else headline,
        claims=(),
        cause=cause(subject, several=len(replays) > 1),
        actions=actions if actions and not few else (nothing,),
        figures=_figures_replay_screen(replays),
    )


def _answered(replay: ReplaySummary) -> int:
    return replay.ended.get(Ended.ANSWERED, 0)


def _figures_replay_screen(replays: Sequence[ReplaySummary]) -> tuple[KeyFigure, ...]:
    """Return answers, tokens per round and time per token of the first replay's first condition,
    beside its condition that differs most."""
    first = replays[0]
    answers = _answers(first)
    if not first.cells:
        return (answers,)
    cell, *others = first.cells
    length = KeyFigure(
        value=number(cell.mean_length),
        unit="tokens per round",
        reference=_beside_replay_screen(cell, [(each, each.length_ratio) for each in others]),
        meaning=MEAN_LENGTH.meaning,
    )
    time = KeyFigure(
        value=milliseconds(cell.tpot_s),
        unit="per output token",
        reference=_beside_replay_screen(cell, [(each, each.tpot_ratio) for each in others]),
        meaning=CLIENT_TPOT.meaning,
    )
    return answers, length, time


def _answers(replay: ReplaySummary) -> KeyFigure:
    """Return the answers, or the rounds of a file that holds sums only."""
    if replay.planned is None:
        cell, rounds = replay.cells[0], replay.cells[0].rounds
        return KeyFigure(
            value=NOT_RECORDED if rounds is None else f"{rounds:,}",
            unit="rounds",
            reference=without_interval(cell) or f"in {cell.condition}",
            meaning="Rounds that the sums of the file cover; it holds no single requests.",
        )
    return KeyFigure(
        value=f"{_answered(replay):,}",
        unit="requests answered",
        reference=f"of {replay.planned:,} sent",
        meaning="Requests with a complete answer; the figures cover no others.",
    )


def _beside_replay_screen(cell: Cell, others: Sequence[tuple[Cell, PairedRatio | None]]) -> str:
    known = [(each, ratio) for each, ratio in others if ratio is not None]
    if not known:
        return f"in {cell.condition}"
    far, ratio = max(known, key=lambda each: abs(each[1].value - 1.0))
    return f"in {cell.condition}; {far.condition} {ratio.value:.2f}× that"
