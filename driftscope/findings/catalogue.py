"""The catalogue of findings, and what it concludes from summaries.

Every rule with an `entry` in a module of rules is in the catalogue, in the order of the modules and
in them. `conclude` evaluates the rules, then puts the standing questions, and makes the first
screen of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import ModuleType
from typing import Any, TypeAlias

from driftscope.analysis.replays import ReplayComparison, ReplaySummary
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.findings import (
    rules_acceptance,
    rules_attention,
    rules_changes,
    rules_circumstances,
    rules_compare,
    rules_confidence,
    rules_data,
    rules_pays,
    rules_speed,
)
from driftscope.findings.case import Case, Entry, Question, ReplayCase, cases_of, replay_cases_of
from driftscope.findings.finding import URGENT, Answer, Finding, Severity, Topic, Trust, note
from driftscope.findings.first_screen import FirstScreen, first_screen_of, plain_screen
from driftscope.findings.rules_data import notes_on, notes_on_plain, notes_on_replay

_MODULES = (
    rules_data,
    rules_attention,
    rules_acceptance,
    rules_circumstances,
    rules_changes,
    rules_pays,
    rules_speed,
    rules_compare,
    rules_confidence,
)
"""Modules of rules. Of findings with equal cost and severity, the earlier rule's comes first: the
cause that the paper names comes before others."""


def _entries(module: ModuleType) -> list[Entry[Any]]:
    """Return the entries and questions that a module defines."""
    known = [rule for rule in vars(module).values() if isinstance(rule, Entry)]
    return [rule for rule in known if rule.rule.__module__ == module.__name__]


_ALL = [rule for module in _MODULES for rule in _entries(module)]
_RULES = [rule for rule in _ALL if not isinstance(rule, Question)]
CATALOGUE: dict[str, Entry[Case]] = {
    rule.id: rule for rule in sorted(_RULES, key=lambda rule: rule.vouches) if rule.about is Case
}
"""Every kind of finding about a probe's run, by id."""
REPLAYS: dict[str, Entry[ReplayCase]] = {
    rule.id: rule for rule in _RULES if rule.about is ReplayCase
}
"""Every kind of finding about a replay, by id."""


def no_finding(name: str, others: Sequence[str] = ()) -> str:
    """Return in words that no finding has this name, nor is it one of `others`, with the nearest
    name."""
    near = get_close_matches(name.lower(), [*CATALOGUE, *REPLAYS, *others], n=1)
    hint = f"did you mean {near[0]}?" if near else "`driftscope findings` lists them"
    return f"no such finding{' or severity' if others else ''}; {hint}"


_QUESTIONS = [rule for rule in _ALL if isinstance(rule, Question)]

REPEATS_UNSEEN = "repeated prompts cannot be seen in this trace"
"""Reason why a finding is not certain."""
_OF_DRAFTER = (Topic.ACCEPTANCE, Topic.WHERE)
"""Topics on which a replay says nothing if acceptance was simulated."""
_END = "_low"
"""End of the name of an interval's lower end, see `finding.figure`."""
Baseline: TypeAlias = RunSummary | BaselineRun | ReplaySummary
"""Summary of a run that others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that a report is made from."""

    runs: tuple[RunSummary, ...]
    cases: tuple[Case, ...]
    """Rule inputs, one case per run, including the advice on K."""
    findings: tuple[Finding, ...]
    """Findings that ask for action first, the most expensive first."""
    answers: tuple[Finding, ...]
    """Answers to the standing questions, in the order of topics."""
    notes: tuple[Finding, ...]
    """Notes on the data, those about missing rows first."""
    screen: FirstScreen
    plain: BaselineRun | None = None
    """Run without speculation; the conclusions are about it if there is nothing else."""
    senders: tuple[ReplaySummary, ...] = ()
    """Summaries of the replays."""
    versus: tuple[ReplayComparison, ...] = ()
    """Comparisons of the first replay with each other replay that sent the same prompts."""
    replay_cases: tuple[ReplayCase, ...] = ()
    """Rule inputs, one case per replay."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the runs and replays, or of the run without speculation if it stands alone."""
        named = (*(run.label for run in self.runs), *(run.label for run in self.senders))
        return named or ((self.plain.label,) if self.plain else ())

    @property
    def losses(self) -> tuple[Finding, ...]:
        """Notes about rows that a run lacks. Every report begins with them, because its figures
        lack those rows, too."""
        return tuple(loss for loss in self.notes if loss.answer is Answer.NO)

    @property
    def other_findings(self) -> list[Finding]:
        """Findings that the first screen neither states nor advises."""
        screen = self.screen
        shown = (screen.lead, screen.subject, *screen.actions)
        return [finding for finding in self.findings if finding not in shown]

    @property
    def verdict(self) -> tuple[str, ...]:
        """Sentences of the first screen; the first one carries the message."""
        return self.screen.sentences


def conclude(
    runs: Sequence[RunSummary],
    senders: Sequence[ReplaySummary] = (),
    baseline: Baseline | None = None,
) -> Analysis:
    """Return findings, answers, notes and first screen for summaries of at least one run or replay.

    The runs are compared with `baseline`, which gets no findings of its own. Without a baseline
    they are compared with the first run. A baseline without speculation may stand alone.
    """
    if isinstance(baseline, BaselineRun) and not runs and not senders:
        return _alone(baseline)
    of_replays = baseline if isinstance(baseline, ReplaySummary) else None
    of_runs = None if isinstance(baseline, ReplaySummary) else baseline
    replays = replay_cases_of(senders, of_replays)
    cases = tuple(
        replace(case, found=tuple(findings_about(case)))
        for case in cases_of(runs, of_runs, replays)
    )
    every = [finding for case in cases for finding in case.found]
    of_replay = [
        rule(case)
        for case in replays
        for rule in REPLAYS.values()
        if (_is_asked(rule, case, cases) or rule.topic is not Topic.PAYS)
        and not (case.run.manifest.is_simulated and rule.topic in _OF_DRAFTER)
    ]
    every += [finding for finding in of_replay if finding is not None]
    findings, answers = ranked(every), _answers(cases, replays)
    vouched = {run for finding in findings if _entry(finding).vouches for run in finding.runs}
    return Analysis(
        runs=tuple(runs),
        cases=cases,
        findings=findings,
        answers=answers,
        notes=_stated_once(
            *(noted for run in runs for noted in notes_on(run)),
            *(noted for run in senders for noted in notes_on_replay(run)),
            *(notes_on_plain(baseline) if isinstance(baseline, BaselineRun) else ()),
            *_unlike_baseline(cases, of_runs),
            *_several_differences(cases, replays),
        ),
        screen=first_screen_of(findings, answers, cases, senders, vouched),
        plain=baseline if isinstance(baseline, BaselineRun) else None,
        senders=tuple(senders),
        versus=tuple(pair for case in replays for pair in case.pairs),
        replay_cases=replays,
    )


def _alone(plain: BaselineRun) -> Analysis:
    """Return what can be told about a run without speculation alone: its speed."""
    served = replace(rules_pays.without_speculation(plain), runs=(plain.label,))
    return Analysis(
        runs=(),
        cases=(),
        findings=(),
        answers=(served,),
        notes=tuple(notes_on_plain(plain)),
        screen=plain_screen(plain, served),
        plain=plain,
    )


def findings_about(case: Case) -> list[Finding]:
    """Return the findings about one run, in the catalogue's order; one only if it blocks the
    others."""
    found: list[Finding] = []
    for rule in CATALOGUE.values():
        finding = rule(replace(case, found=tuple(found)))
        if finding is not None and rule.blocks:
            return [finding]
        found += [finding] if finding is not None else []
    if not case.run.seen_whole:
        because = "most rounds are of requests that were not recorded whole"
        return [replace(finding, confidence=Trust.LOW, because=because) for finding in found]
    return [_repeats_unseen(finding) for finding in found] if case.run.unseen else found


def _answers(cases: Sequence[Case], replays: Sequence[ReplayCase]) -> tuple[Finding, ...]:
    """Return the answers about runs and replays, in the order of topics. A run about which nothing
    may be concluded gets none."""
    open_cases = [case for case in cases if not _is_blocked(case)]
    asked: tuple[Case | ReplayCase, ...] = (*open_cases, *replays)
    answers = [
        answer
        for question in _QUESTIONS
        for subject in asked
        if question.about is type(subject)
        and _is_asked(question, subject, cases)
        and (answer := question(subject)) is not None
    ]
    return tuple(sorted(answers, key=lambda answer: list(Topic).index(answer.topic)))


def _is_blocked(case: Case) -> bool:
    """Whether nothing else may be concluded about a run."""
    return any(_entry(finding).blocks for finding in case.found)


def _is_asked(question: Entry[Any], subject: Case | ReplayCase, cases: Sequence[Case]) -> bool:
    """Whether a question is put to a case. Beside runs, a replay is only asked whether speculation
    pays, unless a run is that answered it."""
    if isinstance(subject, Case) or not cases:
        return True
    answered = any(case.replayed is subject for case in cases if not _is_blocked(case))
    return question.topic is Topic.PAYS and subject.with_and_without and not answered


def _entry(finding: Finding) -> Entry[Any]:
    return CATALOGUE.get(finding.id) or REPLAYS[finding.id]


def _repeats_unseen(finding: Finding) -> Finding:
    """Return a finding about a run that does not show which prompts repeat: what rests on an
    interval is neither high nor certain."""
    rests = any(name.endswith(_END) and low is not None for name, low in finding.evidence.items())
    if not rests:
        return finding
    high = finding.severity is Severity.HIGH
    certain = finding.confidence is Trust.HIGH
    because = f"{finding.because}; {REPEATS_UNSEEN}" if certain or high else finding.because
    return replace(
        finding,
        severity=Severity.MEDIUM if high else finding.severity,
        confidence=Trust.MEDIUM if certain else finding.confidence,
        because=because,
    )


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: a dead drafter first, then by cost in tokens per second, unknown costs
    last."""
    places = {name: place for place, name in enumerate((*CATALOGUE, *REPLAYS))}
    return tuple(sorted(findings, key=lambda f: (*_rank(f), places[f.id])))


def _rank(finding: Finding) -> tuple[int, float, int]:
    place = list(Severity).index(finding.severity or Severity.GOOD)
    if _entry(finding).leads:
        return (-1, 0.0, place)
    asks = finding.severity in URGENT
    cost = max(finding.cost_tps or 0.0, 0.0) if asks else 0.0
    return (0 if asks else place, -cost, place)


def _stated_once(*notes: Finding) -> tuple[Finding, ...]:
    """Return the notes; those with one statement are one note on all their runs."""
    stated: dict[tuple[str, str], Finding] = {}
    for finding in notes:
        known = stated.get((finding.affects, finding.statement))
        runs = () if known is None else known.runs
        stated[finding.affects, finding.statement] = replace(
            known or finding, runs=tuple(dict.fromkeys((*runs, *finding.runs)))
        )
    return tuple(stated.values())


def _several_differences(cases: Sequence[Case], replays: Sequence[ReplayCase]) -> list[Finding]:
    """Note runs and replays that differ from the one they are compared with in more than their
    drafter."""
    compared = [
        (case.comparison.first, case.comparison.second, case.comparability)
        for case in cases
        if case.comparison
    ]
    compared += [
        (replay.reference.label, replay.run.label, replay.comparability)
        for replay in replays
        if replay.reference and replay.pairs
    ]
    return [
        note(message, first, second, name="unlike", affects="run", answer=Answer.CANNOT_TELL)
        for first, second, comparability in compared
        if (message := comparability.warning)
    ]


def _unlike_baseline(
    cases: Sequence[Case], baseline: RunSummary | BaselineRun | None
) -> list[Finding]:
    """Note a baseline without speculation that comes from a different server: it is compared with
    nothing."""
    if not isinstance(baseline, BaselineRun) or not cases or any(case.plain for case in cases):
        return []
    message = (
        "it is not used: its engine, runner, execution mode, tensor parallelism or "
        "target model is another one"
    )
    return [
        note(
            message,
            baseline.label,
            name="baseline",
            affects="run",
            answer=Answer.CANNOT_TELL,
        )
    ]
