"""The first screen: a headline, three figures, the answers in a fixed order, and what to do.

Answers about speed and acceptance come first, and what happens inside the drafter last: it explains
a loss, and is none by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from driftscope.analysis.advice import (
    NO_SPECULATION,
    WORTH_SAYING,
    Advice,
    served_option,
    to_measure,
)
from driftscope.analysis.compare import MATTERS
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.number_words import ks_of, listed, milliseconds, number, percent
from driftscope.analysis.replays import NOT_RECORDED, Cell, ReplaySummary
from driftscope.analysis.speed import WHOLE, speed_by_means
from driftscope.analysis.statistics.ratio import PairedRatio
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.analysis.time_per_token import WORTH
from driftscope.findings.case import Case
from driftscope.findings.finding import URGENT, Answer, Finding, Headline, Severity, Topic, capital
from driftscope.findings.rules_acceptance import acceptance_dies, acceptance_falls
from driftscope.findings.rules_compare import without_interval
from driftscope.findings.rules_pays import model_ratio
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.latency import CLIENT_TPOT, PREDICTED_TPOT, TPOT, TTFT
from driftscope.vocabulary import Ended

PAYS = "`driftscope pays "
_TO_KNOW = "To know: "
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
    PLAIN = "no speculation"
    """The only run is one without speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """One figure of the first screen, beside what it is compared with."""

    value: str
    unit: str
    reference: str
    """Words for what the figure is compared with."""
    meaning: str
    """Definition of the figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstScreen:
    """First screen of one analysis: a choice among its findings and answers."""

    state: State
    headline: str
    """Sentence that alone must carry the message."""
    lead: Finding
    """Finding or answer that the headline tells."""
    subject: Finding | None
    """Finding that badge and first action are about, if the headline does not tell it."""
    answers: tuple[Finding, ...]
    """Answers to the standing questions, in the order of topics."""
    actions: tuple[Finding, ...]
    """Findings whose advice is what to do, most urgent first, at least one."""
    figures: tuple[KeyFigure, ...]
    """Figures of the run that the headline is about."""
    several: bool
    """Whether the findings name their runs."""
    marks: tuple[tuple[Topic, Answer], ...]
    """Worst answer on each topic, among those of all runs. Findings that compare two runs count for
    acceptance only."""

    @property
    def cause(self) -> str:
        """The subject as a sentence; "" without one."""
        if self.subject is None:
            return ""
        about = f"{listed(self.subject.runs)}: " if self.several else ""
        return f"{about}{self.subject.titled}."

    def is_told(self, finding: Finding) -> bool:
        """Return whether the headline or the line below it states a finding."""
        return finding in (self.lead, self.subject)

    @property
    def lines(self) -> tuple[tuple[Topic, tuple[str, ...]], ...]:
        """Topic and sentences of each line below the headline, which is not repeated.

        Sentences that are equal for several runs, and what to record, stand once; what an action
        advises is left to it.
        """
        rows, ids = [], set[str]()
        for topic in Topic:
            about = [answer for answer in self.answers if answer.topic is topic]
            runs: dict[str, list[str]] = {}
            for answer in about:
                if answer != self.lead:
                    runs.setdefault(answer.statement, []).extend(answer.runs)
            texts = [
                f"{listed(labels)}: {statement}." if self.several else f"{capital(statement)}."
                for statement, labels in runs.items()
            ]
            advised = dict.fromkeys(
                answer.advice
                for answer in about
                if not any(
                    answer.advice.removeprefix(_TO_KNOW).rstrip(".") in action.advice
                    for action in self.actions
                )
            )
            records = [words for words in advised if words not in ids]
            # One `driftscope pays` of all runs answers whatever is asked of their speed.
            measured = any(PAYS in action.advice for action in self.actions)
            pays = [words for words in records if PAYS in words]
            records = [words for words in records if words not in pays[0 if measured else 1 :]]
            if all(words.startswith(_TO_KNOW) for words in records):
                records[1:] = [words.removeprefix(_TO_KNOW) for words in records[1:]]
            ids |= advised.keys()
            if texts or records:
                rows.append((topic, (*texts, *records)))
        return tuple(rows)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Headline, subject, lines and action as sentences."""
        lines = (" ".join(texts) for _, texts in self.lines)
        every = (self.headline, self.cause, *lines, self.actions[0].short_advice)
        return tuple(sentence for sentence in every if sentence)


def first_screen_of(
    findings: Sequence[Finding],
    answers: Sequence[Finding],
    cases: Sequence[Case],
    replays: Sequence[ReplaySummary],
    vouched: Collection[str],
) -> FirstScreen:
    """Return the first screen of runs or, without one, of replays, at least one.

    `findings` are ranked, `vouched` the labels of runs that a finding calls healthy. Badge and
    first action are about one thing: what the headline says, if it asks for something, or else the
    most urgent finding, which then stands below the headline. Where several drafters were asked the
    same and one surely pays, all of it is about that one.
    """
    told = [*answers, *(finding for finding in findings if finding.headline is not Headline.NEVER)]
    # Answers that a drafter surely pays, the fastest first, where several were asked the same.
    asked = {case.run.label for case in cases if case.replayed is not None}
    sure = (Topic.PAYS, Answer.YES, Headline.MEASURED)
    pays = [
        a for a in answers if (a.topic, a.answer, a.headline) == sure and asked.issuperset(a.runs)
    ]
    paying = sorted(pays, key=lambda a: -(a.estimate or 0.0)) if len(asked) > 1 else []
    lead, about = min(told, key=_headline_rank), answers
    if paying:
        lead = paying[0]
        findings, about = (
            [finding for finding in conclusions if set(finding.runs) <= set(lead.runs)]
            for conclusions in (findings, answers)
        )
    subject = _subject(lead, findings)
    measured = lead.headline in (Headline.MEASURED_LOSS, Headline.MEASURED)
    if subject is not None and not lead.reference and not measured:
        own_findings = [finding for finding in told if set(finding.runs) & set(subject.runs)]
        lead = min(own_findings or told, key=_headline_rank)
    several = len(cases or replays) > 1
    text = lead.sentence(several)
    asks = lead.answer is Answer.NO or _better(lead) is not None
    few = lead.headline is Headline.TOO_LITTLE_DATA
    marks = _marks([*about, *findings])
    actions = (
        (_serve(cases, paying), *_advised(subject, findings))[:MOST_ACTIONS]
        if paying
        else _actions(cases, findings, answers, lead, subject)
    )
    dead = lead.headline is Headline.NOTHING_ACCEPTED
    turned_off = few or dead or actions[0].option == NO_SPECULATION
    if not turned_off and not any(PAYS in action.advice for action in actions):
        unknown = dict(marks).get(Topic.PAYS) is Answer.CANNOT_TELL
        measure = _next_k(cases, answers) or (_to_know_whether_it_pays(answers) if unknown else ())
        actions = (*actions[: MOST_ACTIONS - len(measure)], *measure)
    return FirstScreen(
        state=_state(cases, lead, subject, about, vouched),
        headline=f"Too little to conclude. {text}" if few else text,
        lead=lead,
        subject=None if asks or subject is lead else _loss_behind(subject, findings),
        answers=tuple(answers),
        actions=actions,
        figures=_figures(cases, lead)
        if cases
        else _replay_figures(next((r for r in replays if r.label in lead.runs), replays[0])),
        several=several,
        marks=marks,
    )


def _serve(cases: Sequence[Case], paying: Sequence[Finding]) -> Finding:
    """Return the advice to serve the fastest of several drafters, and the next one, if it may be
    faster."""
    best, near = paying[0], next(iter(paying[1:]), None)
    run = next(case.run for case in cases if case.run.label in best.runs)
    doubt = ""
    if near and best.interval and near.estimate and best.interval.low <= near.estimate:
        doubt = (
            f" {near.runs[0]} is {near.estimate:.2f}× as fast as without: which of the two is "
            "faster is not certain."
        )
    return Finding(
        id="serve",
        topic=Topic.DO,
        runs=best.runs,
        option=served_option(run),
        title=f"it is the fastest of {sum(case.replayed is not None for case in cases)} that were "
        "measured",
        advice=f"Serve with the drafter and K of {run.label}.{doubt}",
    )


def plain_screen(run: BaselineRun, served: Finding) -> FirstScreen:
    """Return the first screen of a run without speculation alone; `served` tells its speed."""
    latency, across = run.latency, f"over {run.requests:,} requests"
    times = (
        (latency.tpot_s, "per output token", TPOT.meaning),
        (latency.ttft_s, "to the first token", TTFT.meaning),
    )
    return FirstScreen(
        state=State.PLAIN,
        headline=served.sentence(several=False),
        lead=served,
        subject=None,
        answers=(served,),
        actions=(Finding(id="compare", topic=Topic.DO, advice=served.advice),),
        figures=tuple(
            KeyFigure(value=milliseconds(value), unit=unit, reference=across, meaning=meaning)
            for value, unit, meaning in times
        ),
        several=False,
        marks=_marks([served]),
    )


def _marks(findings: Sequence[Finding]) -> tuple[tuple[Topic, Answer], ...]:
    """Return the worst answer to each topic, but whether speculation pays with some drafter."""
    given: dict[Topic, list[Answer]] = {}
    for finding in findings:
        if finding.answer is None or (finding.topic is Topic.PAYS and finding.reference):
            continue
        given.setdefault(finding.topic, []).append(finding.answer)
    return tuple(
        (topic, (max if topic is Topic.PAYS else min)(given[topic], key=list(Answer).index))
        for topic in Topic
        if topic in given
    )


def _headline_rank(told: Finding) -> tuple[int, float]:
    """Return the place of a finding in the choice of the headline: of decided answers the most
    remarkable comes first, of figures the lowest."""
    size = told.estimate or 0.0
    return told.headline, -size if told.answer is Answer.YES else size


def _better(lead: Finding) -> tuple[str, str] | None:
    """Return which of two runs the headline calls faster, or better accepted, and the other one;
    None if it calls neither so."""
    if not lead.reference or lead.answer is Answer.CANNOT_TELL or lead.interval is None:
        return None
    if lead.answer is Answer.NO:
        return lead.reference, lead.runs[-1]
    equal = 1.0 if lead.topic is Topic.PAYS else 0.0
    matters = (lead.estimate or 0.0) >= equal + MATTERS
    better = lead.interval.low > equal and matters
    return (lead.runs[-1], lead.reference) if better else None


def _subject(lead: Finding, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that badge and first action are about: the lead, or the most urgent one.

    None if there is too little data, if the headline compares two runs and says which to serve, or
    if nothing asks for anything. Findings about the drafter's inside come last within their
    severity: they explain a loss, and are none by themselves.
    """
    if lead.headline is Headline.TOO_LITTLE_DATA or _better(lead) is not None:
        return None
    if lead.severity is not None and lead.answer is Answer.NO:
        return lead
    ordered = sorted(findings, key=lambda finding: finding.topic is Topic.INSIDE)
    urgent = (f for severity in URGENT for f in ordered if f.asks and f.severity is severity)
    return next(urgent, None)


def _loss_behind(subject: Finding | None, findings: Sequence[Finding]) -> Finding | None:
    """Return the loss along the chain that a subject about the drafter's inside explains, or the
    subject: readers who never heard of drift understand the loss."""
    if subject is None or subject.topic is not Topic.INSIDE:
        return subject
    losses = (acceptance_falls.id, acceptance_dies.id)
    return next((f for f in findings if f.id in losses and f.runs == subject.runs), subject)


def _other_drafting(cases: Sequence[Case], lead: Finding) -> bool:
    """Return whether the two runs that the headline compares differ in drafter or K."""
    pair = {lead.reference, lead.runs[-1]}
    return any(
        case.comparability.other_drafting
        for case in cases
        if case.reference is not None and {case.reference.label, case.run.label} == pair
    )


def _state(
    cases: Sequence[Case],
    lead: Finding,
    subject: Finding | None,
    answers: Sequence[Finding],
    vouched: Collection[str],
) -> State:
    """Return the state: of the headline if it asks for something, or else of the subject."""
    if lead.headline is Headline.TOO_LITTLE_DATA:
        return State.TOO_LITTLE
    if _better(lead) and not _other_drafting(cases, lead):
        return State.LOOK
    if lead.answer is Answer.NO or (_better(lead) and lead.topic is Topic.PAYS):
        return State.ACT
    if _better(lead):
        return State.LOOK
    if subject is not None:
        return State.ACT if subject.severity is Severity.HIGH else State.LOOK
    open_ = {told.topic for told in (*answers, lead) if told.answer is Answer.CANNOT_TELL}
    if dict(_marks(answers)).get(Topic.INSIDE) is Answer.YES:
        # Acceptance alone hardly ever shows that nothing is lost along the chain: what was measured
        # inside the drafter does.
        open_.discard(Topic.WHERE)
    if open_:
        return State.NOTHING_SEEN
    runs = {run for answer in answers for run in answer.runs}
    return State.HEALTHY if runs <= set(vouched) else State.NOTHING_SEEN


def _actions(
    cases: Sequence[Case],
    findings: Sequence[Finding],
    answers: Sequence[Finding],
    lead: Finding,
    subject: Finding | None,
) -> tuple[Finding, ...]:
    """Return what to do: switch to the run that the headline calls faster, and what its findings
    advise; or else what the findings advise, or else which K to measure, or else what to record."""
    if lead.headline is Headline.TOO_LITTLE_DATA:
        return (Finding(id="record_more", topic=Topic.DO, advice=lead.advice),)
    better, runs = _better(lead), {case.run.label: case.run for case in cases}
    left = [finding for finding in findings if not _is_served(finding, runs)]
    if better is None or better[0] not in runs:
        if advised := _advised(subject, left):
            return advised
        if measure := _next_k(cases, answers):
            return measure
        # Nothing is to be changed; what to record for the first question without an answer.
        record = next((answer.advice for answer in (lead, *answers) if answer.advice), "")
        nothing = f"Nothing to change. {record}".strip()
        return (Finding(id="nothing_to_change", topic=Topic.DO, advice=nothing),)
    if _other_drafting(cases, lead):
        other = runs.get(better[1])
        switch = _switch(runs[better[0]], better[1], other, faster=lead.topic is Topic.PAYS)
    else:
        # Neither drafter nor K makes one of the two runs better.
        switch = Finding(
            id="same_drafting",
            topic=Topic.DO,
            runs=(better[0],),
            reference=better[1],
            advice=f"{better[0]} and {better[1]} serve with the same drafter and K: find out what "
            "else changed between them, such as the machine or an option of the server.",
        )
    own = [finding for finding in left if finding.runs == (better[0],)]
    return (switch, *_advised(None, own))[:MOST_ACTIONS]


def _next_k(cases: Sequence[Case], answers: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return which K of a single run to measure, beside no speculation, if it may be clearly
    faster."""
    advice = cases[0].advice if len(cases) == 1 else None
    words, step = (to_measure(advice), advice.choice.next) if advice else (None, None)
    if not (advice and words and step and (step.guess or 0.0) >= WORTH_SAYING):
        return ()
    unknown = dict(_marks(answers)).get(Topic.PAYS) is Answer.CANNOT_TELL
    also = " and whether speculation pays" if unknown else ""
    measure = f"{words}{also}: `{advice.measure_command}`."
    return (Finding(id="measure", topic=Topic.DO, advice=measure),)


def _to_know_whether_it_pays(answers: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return what tells whether speculation pays."""
    asked = [one for one in answers if one.topic is Topic.PAYS and one.advice and not one.reference]
    if not asked:
        return ()
    measure = Finding(
        id="measure_whether_it_pays",
        topic=Topic.DO,
        title="Whether speculation pays cannot be told",
        advice=asked[0].advice,
    )
    return (measure,)


def _is_served(finding: Finding, runs: Mapping[str, RunSummary]) -> bool:
    """Return whether a finding proposes the option with which its run was served."""
    served = [served_option(runs[label]) for label in finding.runs if label in runs]
    return finding.option is not None and finding.option in served


def _advised(subject: Finding | None, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the subject, then other urgent findings, without repetition of what they advise. Of a
    drafter that is to be turned off, nothing else is advised."""
    if subject is not None and subject.option == NO_SPECULATION:
        return (subject,)
    sure = [finding for finding in findings if finding.asks and finding is not subject]
    kept: dict[str, Finding] = {}
    for finding in [*([subject] if subject else []), *sure]:
        kept.setdefault(finding.option or finding.short_advice, finding)
    return tuple(kept.values())[:MOST_ACTIONS]


def _switch(run: RunSummary, other: str, its_run: RunSummary | None, *, faster: bool) -> Finding:
    """Return the advice to serve with the drafter of `run` instead of that of `other`, or with its
    K; not `faster`: only its acceptance is known to be better."""
    return Finding(
        id="switch",
        topic=Topic.DO,
        runs=(run.label,),
        reference=other,
        option=served_option(run),
        title="it serves the same target faster"
        if faster
        else "it accepts more; which one serves faster cannot be told from these runs",
        advice=f"Serve with {ks_of(run.ks)}, as {run.label} does, instead of {ks_of(its_run.ks)}."
        if faster and its_run is not None and its_run.manifest.drafter == run.manifest.drafter
        else f"Serve with the drafter and K of {run.label} instead of those of {other}."
        if faster
        else f"Try the drafter of {run.label} instead of that of {other}, and compare the time per "
        "token under your own load.",
    )


def _figures(cases: Sequence[Case], lead: Finding) -> tuple[KeyFigure, ...]:
    """Return time per token, tokens per round and K of the run that the headline is about, beside
    those of the run that it is compared with; of the first run and the one compared with it."""
    case = next((case for case in cases if case.run.label in lead.runs), cases[0])
    compared = (other_case.run for other_case in cases if other_case.reference is case.run)
    other = case.reference or next(compared, None)
    speeds = case.replayed.speeds if case.replayed else ()
    if speeds:
        at_load = speeds[0]
        speed = at_load.decisive
        change = _change(speed.own, speed.other, doubtful=speed.faster is None)
        meaning = CLIENT_TPOT.meaning if at_load.by_client else TPOT.meaning
        if WHOLE in at_load.by_client:
            meaning = (
                "Time from sending a request to the end of its answer, divided by its output "
                "tokens, because many answers came in one piece; mean over answered requests."
            )
        time = KeyFigure(
            value=milliseconds(speed.own),
            unit=f"per output token, {at_load.load}",
            reference=f"without speculation {milliseconds(speed.other)}{change}",
            meaning=meaning,
        )
    else:
        time = KeyFigure(
            value=milliseconds(case.run.latency.tpot_s),
            unit="per output token",
            reference=_time_reference(case, other),
            meaning=TPOT.meaning,
        )
    drafted = KeyFigure(
        value=ks_of(case.run.ks),
        unit="draft tokens per round",
        reference=_k_reference(case.run, case.advice),
        meaning=PREDICTED_TPOT.meaning,
    )
    length, moved = case.run.acceptance.mean_length, case.run.changes and case.run.changes.points
    if other is not None:
        theirs = other.acceptance.mean_length
        reference = f"{other.label} {number(theirs)}{_change(length, theirs)}"
    elif case.run.changes is not None and moved:
        reference = f"before it changed: {number(case.run.changes.levels[0].mean_length)}"
    else:
        reference = f"at most {case.run.k + 1}, without speculation 1"
    return (
        time,
        KeyFigure(
            value=number(length),
            unit="tokens per round",
            reference=reference,
            meaning=MEAN_LENGTH.meaning,
        ),
        drafted,
    )


def _time_reference(case: Case, other: RunSummary | None) -> str:
    latency = case.run.latency
    if case.plain is not None and case.plain.latency.tpot_s is not None:
        return f"without speculation {_other_time_words(case.plain.latency, latency)}"
    if other is not None and other.latency.tpot_s is not None:
        return f"{other.label} {_other_time_words(other.latency, latency)}"
    ratio = None if case.advice is None else model_ratio(case.advice)
    if ratio is None or latency.tpot_s is None:
        return "no run to compare it with"
    least, most = (milliseconds(end * latency.tpot_s) for end in (ratio[1].low, ratio[1].high))
    return f"without speculation {least.removesuffix(' ms')} to {most}, by bounds"


def _other_time_words(other: Latency, mine: Latency) -> str:
    """Return the other run's time per token, and the change from it to this run's; a change that
    may be none is called so."""
    ratio = speed_by_means(other, mine)
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


def _k_reference(run: RunSummary, advice: Advice | None) -> str:
    if advice is None or (advice.doubt is not None and not advice.none_is_faster):
        return "which K is fastest is not known"
    if advice.none_is_faster:
        return "no speculation serves faster"
    best, gain = advice.overall.best_k, advice.overall.gain
    if (best == run.k and not run.mixed) or gain.value < WORTH:
        return "no other K is predicted to be faster"
    if advice.worth_it:
        return f"K = {best} is predicted {percent(gain.value)} faster"
    return f"K = {best} may be faster; not certain"


def _replay_figures(first: ReplaySummary) -> tuple[KeyFigure, ...]:
    """Return answers, tokens per round and time per token of a replay's first condition,
    beside its condition that differs most."""
    if first.planned is None:
        cell, rounds = first.cells[0], first.cells[0].rounds
        answers = KeyFigure(
            value=NOT_RECORDED if rounds is None else f"{rounds:,}",
            unit="rounds",
            reference="sums, without single requests",
            meaning="Rounds that the sums of the file cover; it holds no single requests.",
        )
    else:
        answers = KeyFigure(
            value=f"{first.ended.get(Ended.ANSWERED, 0):,}",
            unit="requests answered",
            reference=f"of {first.planned:,} sent",
            meaning="Requests with a complete answer; the figures cover no others.",
        )
    if not first.cells:
        return (answers,)
    cell, *others = first.cells
    length = KeyFigure(
        value=number(cell.mean_length),
        unit="tokens per round",
        reference=(without_interval(cell) if first.planned is None else "")
        or _beside_condition(cell, [(condition, condition.length_ratio) for condition in others]),
        meaning=MEAN_LENGTH.meaning,
    )
    time = KeyFigure(
        value=milliseconds(cell.tpot_s),
        unit="per output token",
        reference=_beside_condition(
            cell, [(condition, condition.tpot_ratio) for condition in others]
        ),
        meaning=CLIENT_TPOT.meaning,
    )
    return answers, length, time


def _beside_condition(cell: Cell, others: Sequence[tuple[Cell, PairedRatio | None]]) -> str:
    known = [(condition, ratio) for condition, ratio in others if ratio is not None]
    if not known:
        return f'in "{cell.condition}"'
    far, ratio = max(known, key=lambda pair: abs(pair[1].value - 1.0))
    return f'in "{cell.condition}"; "{far.condition}" {ratio.value:.2f}× that'
