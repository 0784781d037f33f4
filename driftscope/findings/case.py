"""Input of a rule, and the decorators by which a rule enters the catalogue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from driftscope.analysis.advice import FIXED, Advice, advise, same_models
from driftscope.analysis.circumstances import Group
from driftscope.analysis.comparability import (
    NO_DIFFERENCE,
    Claim,
    Comparability,
    RunDifference,
    comparability_of,
    comparability_of_replays,
    prompts_not_known,
)
from driftscope.analysis.compare import (
    Comparison,
    accepts_less,
    accepts_more,
    compare_sides,
    compare_times,
    speed_of,
)
from driftscope.analysis.cost import Slowdown
from driftscope.analysis.figures.change_points import AcceptanceLevel
from driftscope.analysis.number_words import percent, times
from driftscope.analysis.pairing import pair_sides
from driftscope.analysis.replays import SPECULATION, ReplayComparison, ReplaySummary, versus
from driftscope.analysis.speed import SpeedAtLoad, speed_by_means, speeds_of
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import (
    BaselineRun,
    RunSummary,
    cuts_by_confidence,
    shows_acceptance,
)
from driftscope.errors import NoDataError
from driftscope.findings.finding import Finding, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Input of rules about a run; `others` are the other runs analysed with it."""

    run: RunSummary
    others: tuple[RunSummary, ...] = ()
    reference: RunSummary | None = None
    """Run that this one is compared with: a baseline, or the first of several."""
    comparison: Comparison | None = None
    """Comparison of the reference with this run, like that of `driftscope compare`. None if they
    share no depth."""
    accepts_less: bool = False
    """Whether its reference accepts more, by that comparison; for the reference itself, whether
    some run that is compared with it accepts more."""
    comparability: Comparability = NO_DIFFERENCE
    """Further differences between the reference and this run."""
    plain: BaselineRun | None = None
    """Run of the same target without speculation."""
    plain_comparability: Comparability = NO_DIFFERENCE
    """Differences between `plain` and this run, apart from speculation."""
    speedup: tuple[float, Interval] | None = None
    """Speed compared with `plain`, with its 95% interval, as `driftscope compare` has it."""
    replayed: ReplayCase | None = None
    """Replay that this run answered, or a server of the same drafter and K, if it is compared with
    one of a server that does not speculate."""
    advice: Advice | None = None
    found: tuple[Finding, ...] = ()
    """Findings of the rules; for rules and questions that are evaluated after them."""

    def is_answered(self, topic: Topic) -> bool:
        """Return whether a finding answers the question of a topic."""
        return any(finding.topic is topic and finding.answer is not None for finding in self.found)

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens per second of the busy engine, by the cost model; None if unknown."""
        return self.advice.tokens_per_s if self.advice else None

    def cost_of(self, mean_length: float) -> float | None:
        """Return the gain in tokens per second if rounds yielded this many tokens in the same time;
        None if unknown."""
        now = self.tokens_per_s
        return None if now is None else now * (mean_length / self.run.acceptance.mean_length - 1.0)

    def cost_of_losing(self, parts: Sequence[Group | AcceptanceLevel], kept: float) -> float | None:
        """Return the gain in tokens per second if the rounds of these parts yielded at least `kept`
        tokens."""
        return self.cost_of(self.run.acceptance.mean_length + self._lost(parts, kept))

    def share_lost(self, parts: Sequence[Group | AcceptanceLevel], kept: float) -> float:
        """Return the share of the run's accepted tokens that are lost if the rounds of these parts
        would otherwise yield at least `kept` tokens."""
        lost = self._lost(parts, kept)
        return lost / (self.run.acceptance.mean_length - 1.0 + lost) if lost else 0.0

    def _lost(self, parts: Sequence[Group | AcceptanceLevel], kept: float) -> float:
        lost = sum(part.rounds * max(kept - part.mean_length, 0.0) for part in parts)
        return lost / self.run.rounds

    def cost_of_gain(self, gain: float) -> float | None:
        """Return the gain in tokens per second if the engine were faster by this share."""
        return None if self.tokens_per_s is None else self.tokens_per_s * gain

    def cost_at_k(self, k: int) -> float | None:
        """Return the gain in tokens per second with this K: at least, if it was not measured. None
        if none is known."""
        if self.advice is None or self.tokens_per_s is None or k >= len(self.advice.gains):
            return None
        gain = self.advice.gains[k]
        if gain.interval is None:
            return None
        known = gain.value if k in self.advice.measured_k else gain.interval.low
        return self.tokens_per_s * known if known > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCase:
    """Input of rules about a replay."""

    run: ReplaySummary
    reference: ReplaySummary | None = None
    """Replay that this one is compared with: a baseline, or the first of several."""
    pairs: tuple[ReplayComparison, ...] = ()
    """Comparisons of the reference with this replay, by condition, on the same prompts."""
    speeds: tuple[SpeedAtLoad, ...] = ()
    """Speed compared with the reference, by load, on the same prompts."""
    comparability: Comparability = NO_DIFFERENCE
    """Further differences between the reference and this replay."""

    @property
    def with_and_without(self) -> bool:
        """Whether it speculates, and its reference does not."""
        return self.reference is not None and self.run.speculates and not self.reference.speculates


def replay_cases_of(
    runs: Sequence[ReplaySummary], baseline: ReplaySummary | None
) -> tuple[ReplayCase, ...]:
    """Return one case per replay, compared with `baseline` or, without one, with the first replay
    of a server that does not speculate; if there is none, with the first replay."""
    plain = next((run for run in runs if not run.speculates), None)
    reference = baseline or plain or next(iter(runs), None)
    servers = sum(run is not reference for run in runs)
    return tuple(
        ReplayCase(run=run)
        if reference is None or run is reference
        else ReplayCase(
            run=run,
            reference=reference,
            pairs=versus(reference, run),
            speeds=speeds_of(reference, run, servers),
            comparability=comparability_of_replays(reference.manifest, run.manifest),
        )
        for run in runs
    )


def cases_of(
    runs: Sequence[RunSummary],
    baseline: RunSummary | BaselineRun | None,
    replays: Sequence[ReplayCase] = (),
) -> tuple[Case, ...]:
    """Return one case per run; all use the step times of the other runs of the same models. A run
    that says nothing about its drafter is compared with nothing, and gets no advice. `replays` may
    be of requests that the runs answered."""
    plain = baseline if isinstance(baseline, BaselineRun) else None
    given = [baseline] if isinstance(baseline, RunSummary) else []
    around = [run for run in (*runs, *given) if shows_acceptance(run)]
    reference = next((run for run in (*given, *runs) if shows_acceptance(run)), None)
    compared = [
        None if run is reference or not shows_acceptance(run) else comparison_of(reference, run)
        for run in runs
    ]
    cases = []
    for run, comparison in zip(runs, compared, strict=True):
        others = tuple(other for other in around if other is not run)
        base = plain if plain is not None and same_models(run, plain, target_only=True) else None
        cases.append(
            Case(
                run=run,
                others=others,
                reference=None if reference is run or not shows_acceptance(run) else reference,
                comparison=comparison,
                comparability=_comparability(reference, run, comparison),
                accepts_less=_comparable(comparison) and accepts_less(comparison)
                if run is not reference
                else any(_comparable(other) and accepts_more(other) for other in compared),
                plain=base,
                plain_comparability=_comparability(base, run),
                speedup=_speedup(base, run),
                replayed=next(
                    (
                        replay
                        for replay in replays
                        if replay.with_and_without and _served(run, replay.run)
                    ),
                    None,
                ),
                advice=advise(run, others, base)
                if shows_acceptance(run) and not cuts_by_confidence(run)
                else None,
            )
        )
    return tuple(cases)


def _comparable(comparison: Comparison | None) -> bool:
    return comparison is not None and comparison.comparability.decides(Claim.ACCEPTANCE)


def _served(run: RunSummary, replay: ReplaySummary) -> bool:
    """Whether a run served a replay, or a server with the same target, drafter and K did."""
    asked, manifest = replay.manifest.workload.get(SPECULATION), run.manifest
    if manifest.run_id in replay.server_ids:
        return True
    if not isinstance(asked, Mapping) or manifest.drafter is None:
        return False
    return (asked.get("model"), asked.get(FIXED)) == (manifest.drafter.name, run.k)


def _speedup(plain: BaselineRun | None, run: RunSummary) -> tuple[float, Interval] | None:
    """Return the speed of a run over one without speculation: request by request if both have
    theirs, otherwise by their means."""
    if plain is None:
        return None
    found, means = None, speed_by_means(plain.latency, run.latency)
    if plain.side is None or run.side is None or not (plain.side.requests and run.side.requests):
        return means
    sides, manifests = (plain.side, run.side), (plain.manifest, run.manifest)
    with contextlib.suppress(NoDataError):
        found = speed_of(compare_times(sides, manifests, (plain.label, run.label)))
    return found or means


def _comparability(
    first: RunSummary | BaselineRun | None, run: RunSummary, comparison: Comparison | None = None
) -> Comparability:
    """Return what differs between two runs; of summaries that were not made from traces, and of a
    run that shows most requests in part, the prompts are not known."""
    if first is None or first is run:
        return NO_DIFFERENCE
    manifests = first.manifest, run.manifest
    if comparison is not None:
        found = comparison.comparability
    elif first.side is None or run.side is None or not run.seen_whole:
        found = prompts_not_known(*manifests)
    else:
        sides = first.side, run.side
        found = comparability_of(sides, manifests, pair_sides(*sides))
    return found.and_also(_of_slowdowns(first.slowdown, run.slowdown))


def _of_slowdowns(first: Slowdown | None, second: Slowdown | None) -> Iterator[RunDifference]:
    """Yield that steps of one of two runs become slower at a moment; longer contexts, which may be
    the reason, slow both."""
    words = [
        f"steps {times(slow.slower)} as long in {percent(slow.share)} of its time"
        if slow and not slow.contexts_may_explain
        else "none"
        for slow in (first, second)
    ]
    if words[0] != words[1]:
        yield RunDifference(
            name="a stretch of slower steps",
            first=words[0],
            second=words[1],
            explains=(Claim.SPEED,),
            settle="Record both while nothing else uses the machine.",
        )


def comparison_of(first: RunSummary | None, second: RunSummary) -> Comparison | None:
    """Return the comparison of two summaries; None if they cannot be compared, or if one shows most
    requests in part."""
    if first is None or first.side is None or second.side is None:
        return None
    if not (first.seen_whole and second.seen_whole):
        return None
    if not min(run.side.rounds.comparable_k for run in (first, second) if run.side):
        return None
    return compare_sides(
        (first.side, second.side),
        (first.manifest, second.manifest),
        (first.label, second.label),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that a rule compares with, and its source: a paper, a measurement, or the reason for
    an orientation."""

    name: str
    """Name of the constant in the rule's module."""
    value: float
    means: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """Figure whose side of a bound decides whether a finding is made."""

    value: float
    interval: Interval | None
    """95% interval of `value`; None if there is none."""
    bound: float

    @property
    def is_open(self) -> bool:
        """Whether noise decides: there is no interval, or it contains the bound."""
        return self.interval is None or self.interval.low <= self.bound <= self.interval.high


About = TypeVar("About", Case, ReplayCase)
"""Input of a rule: the case of a run, or of a replay."""


# Not slotted: Python 3.11 cannot subscript and call a frozen, slotted generic class.
@dataclass(frozen=True, kw_only=True)
class Need(Generic[About]):
    """Data that a trace must contain for a rule to decide."""

    words: str
    met: Callable[[About], bool]


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[About]):
    """One kind of finding: its meaning, its thresholds and its rule. Called with a case, it returns
    the finding about it, or None."""

    id: str
    rule: Callable[[About], Finding | None]
    title: str
    topic: Topic
    thresholds: tuple[Threshold, ...] = ()
    need: Need[About]
    about: type = Case
    """Kind of case that the rule is about."""
    deciding: Callable[[About], Deciding | None] | None = None
    """Function that returns the figure that decides, also if there is no finding; None if several
    do."""
    blocks: bool = False
    """Whether nothing else may be concluded about a run with this finding."""
    leads: bool = False
    """Whether it comes before findings that cost more."""
    vouches: bool = False
    """Whether it says that the run as a whole is in order. Such a rule is evaluated last and sees
    what the others found."""

    @property
    def meaning(self) -> str:
        """Meaning in one or two plain sentences: the docstring of the rule."""
        return " ".join((self.rule.__doc__ or "").split())

    def __call__(self, case: About) -> Finding | None:
        """Return the finding about a case, with what the entry knows of it."""
        found = self.rule(case)
        return found and replace(
            found,
            id=self.id,
            topic=self.topic,
            runs=found.runs or (case.run.label,),
            title=found.title or self.title,
        )


ALWAYS: Need[Case] = Need(words="nothing beyond verified rounds", met=lambda case: True)  # noqa: ARG005


def entry(**fields: Any) -> Callable[[Callable[[About], Finding | None]], Entry[About]]:
    """Enter a rule into the catalogue under its function's name. Its docstring is what users read
    of its meaning; `fields` are those of `Entry`."""
    return lambda rule: Entry(id=rule.__name__, rule=rule, **fields)


class Question(Entry[About]):
    """A question that is put to every run, or every replay, after the rules. Its answer has no
    severity."""


def question(title: str, topic: Topic, about: type = Case) -> Callable[..., Question[Any]]:
    """Put a question under its function's name."""
    need: Need[Any] = Need(words="nothing", met=lambda _: True)
    return lambda rule: Question(
        id=rule.__name__, rule=rule, title=title, topic=topic, need=need, about=about
    )
