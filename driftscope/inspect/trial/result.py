"""Results of a trial: the inside of a drafter along its chains, what is accepted as it is and with
each repair, and what follows.

Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.number_words import between, between_percent, percent, times
from driftscope.analysis.query.query_engine import Matrix
from driftscope.analysis.statistics.drift import (
    AttentionDrift,
    DistanceSums,
    Estimate,
    SinkSums,
    drift_by_distance,
    estimates,
    with_sink,
)
from driftscope.analysis.statistics.intervals import CONFIDENCE, Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, rate_intervals, ratio_of
from driftscope.boundary.json_document import written_property
from driftscope.findings.causes import GROWS_ABOVE
from driftscope.findings.rules_attention import STABLE_BELOW, drift_words
from driftscope.inspect.checks.result import Certainty, CheckResult, Level
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.metrics.confidence import CALIBRATED, RIGHT_BY_SKILL
from driftscope.metrics.hidden import per_depth
from driftscope.trace.records import edges_of
from driftscope.vocabulary import Growth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InsideSums:
    """Sums over the chains of one prompt; sequences are by depth, from depth 1 on."""

    chains: int
    bins: Matrix
    """Attention by depth and distance, [K, bins], the sink left out; see
    `driftscope.trace.records`."""
    sink: Sequence[float]
    """Attention on the sink."""
    own: Sequence[float]
    """Attention on the chain itself."""
    even: float
    """Attention that the sink would get if it were spread evenly over the verified slots."""
    fed: Sequence[float]
    """RMS of the state fed to the next depth."""
    reached: Sequence[float]
    """Number of chains of which everything before this depth is accepted."""
    sure: Sequence[float]
    """Probability that the drafter gives to its own token, in these chains."""
    right: Sequence[float]
    """Number of these chains whose token here is the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How sure a drafter is, and how often it is right, by depth, among the drafts of which
    everything before is accepted; None at a depth that no draft reaches."""

    sure: tuple[float | None, ...]
    """Mean probability that it gives to its own token."""
    right: tuple[Estimate | None, ...]
    """Share of its tokens that are the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The inside of a drafter along its chains. `attention_drift` and `growth` are None with K = 1,
    at which nothing can change over depth."""

    attention_drift: AttentionDrift | None
    growth: Estimate | None
    """RMS of the state fed forward at depth K over that at depth 1."""
    confidence: Confidence
    depths: int

    @written_property
    def grows(self) -> Growth:
        """Whether the state grows, with the thresholds of `hidden_state_grows` and
        `hidden_state_stable`."""
        spread = self.growth.interval if self.growth else None
        if spread is None or not spread.low > 0:
            return Growth.CANNOT_TELL
        low, high = (per_depth(end, self.depths) for end in (spread.low, spread.high))
        if low > GROWS_ABOVE.value:
            return Growth.GROWS
        return Growth.KEEPS_ITS_SIZE if high < STABLE_BELOW.value else Growth.CANNOT_TELL

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for people, without a full stop."""
        if self.growth is not None and not np.isfinite(self.growth.value):
            return ()
        drift = self.attention_drift
        attention = () if drift is None else (drift_words(drift, "prompt"),)
        growth = () if self.growth is None else (_growth_words(self.growth, self),)
        sure, right = self.confidence.sure[0], self.confidence.right[0]
        if sure is None or right is None:
            return (*attention, *growth)
        words = (
            f"the drafter is {percent(sure)} sure of its first token, which is right in "
            f"{percent(right.value)}{between_percent(right.interval)}"
        )
        return (*attention, *growth, words)


def inside_of(prompts: Sequence[InsideSums]) -> Inside:
    """Return what the chains of several prompts show. Each prompt is one cluster."""
    depths = len(prompts[0].fed)
    fed = np.array([each.fed for each in prompts])
    several = depths > 1
    return Inside(
        attention_drift=_attention(prompts, depths) if several else None,
        growth=estimates(ratio_of(fed[:, -1:], fed[:, :1]))[0] if several else None,
        confidence=_confidence(prompts),
        depths=depths,
    )


def _attention(prompts: Sequence[InsideSums], depths: int) -> AttentionDrift:
    chains = np.array([each.chains for each in prompts])
    weight = chains.astype(np.float64)
    sink = np.array([each.sink for each in prompts])
    drift = drift_by_distance(
        DistanceSums(
            chains=chains,
            weight=weight,
            bins=np.stack([each.bins for each in prompts]),
            sink=sink,
            null=np.zeros_like(sink),
            own=np.array([each.own for each in prompts]),
        ),
        edges_of(depths),
    )
    kept = SinkSums(
        chains=chains,
        weight=weight,
        first=sink[:, 0],
        last=sink[:, -1],
        even=np.array([each.even for each in prompts]),
    )
    return with_sink(drift, kept)


def _confidence(prompts: Sequence[InsideSums]) -> Confidence:
    reached, sure, right = (
        np.array([getattr(each, name) for each in prompts]) for name in ("reached", "sure", "right")
    )
    total = reached.sum(axis=0)
    return Confidence(
        sure=tuple(
            float(s / n) if n else None for s, n in zip(sure.sum(axis=0), total, strict=True)
        ),
        right=_rates(right, reached),
    )


def _rates(right: Matrix, reached: Matrix) -> tuple[Estimate | None, ...]:
    """Return the rates by depth, over the prompts with a draft that reaches the depth."""
    out = list[Estimate | None]()
    for depth in range(reached.shape[1]):
        there = reached[:, depth] > 0
        if not there.any():
            out.append(None)
            continue
        rate = ratio_of(right[there, depth, None], reached[there, depth, None])
        spread = rate_intervals(rate)
        out.append(Estimate(value=float(rate.value[0]), interval=spread[0] if spread else None))
    return tuple(out)


def _growth_words(growth: Estimate, inside: Inside) -> str:
    size = f"{times(growth.value)}{between(growth.interval)} by depth {inside.depths}"
    if inside.grows is Growth.GROWS:
        return f"the state fed to the next depth grows: {size}"
    if inside.grows is Growth.KEEPS_ITS_SIZE:
        return f"the state fed to the next depth keeps its size: {size}"
    return f"whether the state fed to the next depth grows cannot be told: {size}"


Rounds = Sequence[Sequence[int]]
"""Accepted tokens of each round, by prompt."""
Values = Sequence[Sequence[float]]
"""One number for each position of each prompt's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance of one drafter; intervals are clustered by prompt."""

    mean_length: float
    """Tokens per round, with the target's own."""
    mean_length_interval: Interval | None
    marginal: tuple[float, ...]
    """Share of the rounds that accept depth d, from depth 1 on."""
    marginal_interval: tuple[Interval | None, ...]
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Difference of two acceptance lengths on the same prompts."""

    difference: float
    interval: Interval | None
    """Interval of the difference, at the level that the number of comparisons leaves."""
    p: float
    """Two-sided p-value, multiplied by the number of comparisons (Bonferroni)."""


def acceptance_of(rounds: Rounds, k: int) -> Acceptance:
    """Return the acceptance over all rounds."""
    counts = np.array([len(each) for each in rounds], float)[:, None]
    reached = np.array([[sum(n >= d for n in each) for d in range(1, k + 1)] for each in rounds])
    rates = ratio_of(reached.astype(float), counts)
    spread, length = rate_intervals(rates), _length(rounds)
    length_spread = intervals(length)
    return Acceptance(
        mean_length=float(length.value[0]),
        mean_length_interval=length_spread[0] if length_spread else None,
        marginal=tuple(rates.value.tolist()),
        marginal_interval=tuple(spread) if spread else (None,) * k,
        rounds=int(counts.sum()),
    )


def gain(base: Rounds, other: Rounds, comparisons: int) -> Gain:
    """Return how much longer `other` accepts than `base`, prompt by prompt in the same order."""
    return _gain(_length(base), _length(other), comparisons)


def mean_gain(base: Values, other: Values, comparisons: int = 1) -> Gain:
    """Return how much larger the mean of `other` is than that of `base`, over the same positions of
    the same prompts."""
    return _gain(_mean(base), _mean(other), comparisons)


def _gain(first: Ratio, second: Ratio, comparisons: int) -> Gain:
    from scipy.special import stdtr, stdtrit

    difference = float(second.value[0] - first.value[0])
    influence: NDArray[np.float64] = second.influence[:, 0] - first.influence[:, 0]
    n, df = len(influence), max(1.0, float(min(first.df[0], second.df[0])))
    error = float(np.sqrt((n - 1) / n * np.square(influence).sum()))
    if n < 2 or not np.isfinite(error):
        return Gain(difference=difference, interval=None, p=1.0)
    tail = (1 - CONFIDENCE) / 2 / comparisons
    half = float(stdtrit(df, 1 - tail)) * error
    p = float(2 * stdtr(df, -abs(difference) / error)) if error > 0 else float(difference == 0)
    return Gain(
        difference=difference,
        interval=Interval.of(difference - half, difference + half),
        p=min(1.0, p * comparisons),
    )


def mean_length(rounds: Rounds) -> float:
    """Return the tokens per round over all prompts."""
    return float(_length(rounds).value[0])


def _length(rounds: Rounds) -> Ratio:
    """Return the tokens per round by prompt."""
    tokens = np.array([[sum(each) + len(each)] for each in rounds], float)
    return ratio_of(tokens, np.array([[len(each)] for each in rounds], float))


def _mean(values: Values) -> Ratio:
    """Return the mean over all positions by prompt."""
    sums = np.array([[sum(each)] for each in values], float)
    return ratio_of(sums, np.array([[len(each)] for each in values], float))


T = TypeVar("T")


class TrialListener:
    """Listener to a trial's progress; this one ignores everything."""

    def measured(self, as_is: Acceptance, repairs: int) -> None:
        """Hear what is accepted as it is, and how many repairs are tried next."""

    def each(self, items: Iterable[T], _what: str, _total: int) -> Iterable[T]:
        """Return `items`, of which there are `_total`, to be taken one by one."""
        return items


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a drafter that may fix it.

    `fields` are those of config.json that change; `weights` says that tensors change too.
    `mistake` names what was wrong if the repair helps.
    """

    id: str
    change: str
    mistake: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllPositions:
    """Gains over all positions of the answers, paired by prompt.

    Both tell smaller differences from chance than the rounds of a server do, of which there are
    fewer.
    """

    accepted: Gain
    """Accepted tokens of a draft, with its 95% interval, not corrected."""
    probability: Gain
    """Probability of the target's tokens (`Drafted.probability`), corrected for the number of
    repairs tried."""
    first: Gain
    """Log-probability of the target's token at depth 1 (`Drafted.first`), not corrected; it decides
    between captured layers that accept the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A repair, and what is accepted with it."""

    repair: Change
    acceptance: Acceptance
    gain: Gain
    prompts: int
    """Number of prompts; of repairs that were soon given up, fewer than in the whole trial."""
    all_positions: AllPositions | None = None
    behind: Gain | None = None
    """How much longer the best repair accepts on the same prompts; None for the best one, and
    without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """A hypothesis that cannot be tried, and why."""

    id: str
    reason: str
    failed: bool = False
    """Whether trying it fails, rather than that it would change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRendering:
    """Another way of writing the prompts, and what is accepted with it."""

    rendering: Change
    acceptance: Acceptance
    gain: Gain
    """Paired by prompt, corrected for the number of renderings tried."""
    prompts: int
    surer: float
    """Mean log-probability per token that the target gives to its own answers, minus that with the
    prompts as they are: above 0, the answers are easier to predict."""
    surer_interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """The first number of a drafter that the served type cannot hold."""

    depth: int
    """0 for the slots of the prompt."""
    tensor: str
    """Tensor whose layer gives the number."""
    dtype: str
    """Type in which the engine serves the drafter: its target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of a trial."""

    prompts: int
    k: int
    acceptance: Acceptance
    """Acceptance of the drafter as it is."""
    figures: Mapping[str, tuple[float, ...]]
    """Means by depth of the figures that `drafting.FIGURES` names."""
    inside: Inside
    tried: tuple[Tried, ...]
    """All repairs, the best first."""
    renderings: tuple[TriedRendering, ...] = ()
    """Other ways of writing the prompts, the best first."""
    not_applicable: tuple[NotApplicable, ...] = ()
    """Hypotheses that could not be tried, or were not before Ctrl-C."""
    stopped: bool = False
    """Whether Ctrl-C ended the trial; the results are those before it."""
    overflow: Overflow | None = None
    """None if every number of the drafter as it is can be held."""
    not_promised: tuple[str, ...] = ()
    """Reasons why an engine may accept something else than was measured here."""


STOPPED = "stopped by Ctrl-C"
"""Reason for which a hypothesis was not tried."""


def by_reason(left_out: Iterable[NotApplicable]) -> dict[str, list[str]]:
    """Return the ids of hypotheses that were not tried, by the reason."""
    found: dict[str, list[str]] = {}
    for each in left_out:
        found.setdefault(each.reason, []).append(each.id)
    return found


def stopped_before(changes: Iterable[Change]) -> Iterator[NotApplicable]:
    """Return the changes that Ctrl-C left out."""
    return (NotApplicable(id=each.id, reason=STOPPED) for each in changes)


LEAST_GAIN = 0.03
"""Smallest gain of a repair that counts, relative to the acceptance length as it is. A smaller one
is no mistake in the wiring: those that were published cost a fifth and more."""
ALIVE_ABOVE = 0.25
"""Rate at depth 1 below which a drafter counts as dead, and which a repaired one must exceed. It is
below half of the weakest published rate, 0.585; a trained head on random states reached 0.18 in the
shipped target, because frequent tokens are right by chance."""
CLEARLY_ALIVE = 0.5
"""Rate at depth 1 above which a drafter is alive; the weakest published rate is 0.585. The lower
end of the interval must be above it for an all-clear, and the upper end below it for a conclusion
that little is accepted."""
AS_GOOD = 0.01
"""Difference to the best repair, relative to its acceptance length, up to which a repair of the
config alone is preferred."""
_CHANCE = 1 - CONFIDENCE
_RULE = "paired on the same prompts, corrected for the number of repairs tried"
_RULE_OF_POSITIONS = (
    "paired on all positions of the same prompts: the target's tokens are more probable beyond "
    "chance, corrected for the number of repairs tried, and more of them are accepted (95%)"
)


def verdict(trial: Trial, found: Sequence[CheckResult] = ()) -> Iterator[CheckResult]:
    """Yield what the trial shows beside `found`, the results of the files: numbers that overflow;
    the repair that helps most, or that little is accepted without a known cause; then the
    renderings of the prompts that help. A repair that leaves little accepted, or helps less than
    another rendering, is no cause but a note. After Ctrl-C, a repair that was not tried may
    help."""
    best, written = best_repair(trial), [*rendering_results(trial)]
    if trial.overflow is not None:
        yield _overflows(trial.overflow)
    weak = best is not None and is_alive(best.acceptance) is False
    less = best is not None and _helps_less(trial, best, found)
    if best is not None and not (weak or less):
        yield _repaired(trial, best)
    elif not (trial.stopped or less) and trial.overflow is None:
        yield from _unexplained(trial, found)
    yield from written
    if best is not None and (weak or less):
        yield replace(_repaired(trial, best), level=Level.NOTE, certainty=Certainty.POSSIBLE)


def _helps_less(trial: Trial, best: Tried, found: Sequence[CheckResult]) -> bool:
    """Whether another rendering of the prompts accepts more than the best repair does, which is no
    matter of easier answers: the target is no surer of them, or the files say that its template is
    not the drafter's."""
    other = any(result.id == _TEMPLATE_DIFFERS for result in found)
    return any(
        (other or _accepts_more(trial, each).level is Level.WARNING)
        and each.acceptance.mean_length > best.acceptance.mean_length
        for each in _helping(trial)
    )


def is_alive(acceptance: Acceptance) -> bool | None:
    """Whether clearly more than CLEARLY_ALIVE is accepted at depth 1, or clearly less; None if the
    prompts are too few to tell."""
    spread = acceptance.marginal_interval[0]
    if spread is None:
        return None
    if spread.low > CLEARLY_ALIVE:
        return True
    return False if spread.high < CLEARLY_ALIVE else None


def _overflows(overflow: Overflow) -> CheckResult:
    place = f"at depth {overflow.depth}" if overflow.depth else "in the slots of the prompt"
    return CheckResult(
        id="states_overflow",
        level=Level.ERROR,
        title=f"states overflow {place}",
        expected=f"numbers that {overflow.dtype} can hold",
        rule="one number that is infinite or NaN makes every draft after it arbitrary; engines "
        "serve a drafter in its target's type",
        there=f"the output of {overflow.tensor} is infinite, NaN or too large",
        change=f"export {overflow.tensor} again, and look for rows that are far larger than others",
    )


def _unexplained(trial: Trial, found: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield why the drafter is not sound although no repair helps."""
    rate, spread = trial.acceptance.marginal[0], trial.acceptance.marginal_interval[0]
    there = f"{rate:.0%}{between_percent(spread)} at depth 1, {trial.acceptance.rounds} rounds"
    expected = f"clearly more than {CLEARLY_ALIVE:.0%} at depth 1"
    alive = is_alive(trial.acceptance)
    if alive is None:
        yield CheckResult(
            id="too_few_prompts",
            level=Level.WARNING,
            title=f"too few prompts to tell whether enough is accepted ({trial.prompts})",
            expected=expected,
            rule="the 95% interval over prompts must lie on one side",
            there=there,
            change=f"give more prompts: --limit {4 * trial.prompts}",
            certainty=Certainty.POSSIBLE,
        )
    elif not alive:
        if _knows_little(trial):
            yield _too_little_training(trial, there)
        elif any(result.id == _OTHER_EMBEDDING for result in found):
            yield CheckResult(
                id="another_target",
                level=Level.ERROR,
                title="little is accepted, and the embedding is not this target's",
                expected=expected,
                rule=f"none of {len(trial.tried)} repairs explains it",
                there=there,
                change="use a drafter that was trained on this target",
                certainty=Certainty.LIKELY,
            )
        else:
            dead = spread is not None and spread.high < ALIVE_ABOVE
            yield CheckResult(
                id="accepts_little",
                level=Level.ERROR if dead else Level.WARNING,
                title="little is accepted, and the cause was not found",
                expected=expected,
                rule=f"none of {len(trial.tried)} repairs explains it",
                there=f"{there}{_confidence_words(trial)}",
                change="one of: tensors of another checkpoint, or damaged by a conversion; a "
                "drafter of another target; prompts or a template unlike those of its training",
                certainty=Certainty.CERTAIN,
            )


_TEMPLATE_DIFFERS = "template_differs"
_OTHER_EMBEDDING = "embedding_not_targets"


def _knows_little(trial: Trial) -> bool:
    """Whether confidence is low and right: the drafter knows how often it is right, and is right
    more often than by chance."""
    sure, right = trial.inside.confidence.sure[0], trial.inside.confidence.right[0]
    if sure is None or right is None:
        return False
    return abs(sure - right.value) <= CALIBRATED and right.value >= RIGHT_BY_SKILL


def _too_little_training(trial: Trial, there: str) -> CheckResult:
    return CheckResult(
        id="too_little_training",
        level=Level.WARNING,
        title="the drafter was trained too little: it accepts little, and knows it",
        expected=f"clearly more than {CLEARLY_ALIVE:.0%} at depth 1",
        rule="a mistake in the wiring leaves a drafter surer than it is right; this one is not",
        there=f"{there}{_confidence_words(trial)}",
        change="train it longer, or on more text like these prompts",
        certainty=Certainty.POSSIBLE,
    )


def _confidence_words(trial: Trial) -> str:
    sure = trial.inside.confidence.sure[0]
    return "" if sure is None else f"; it is {sure:.0%} sure of its first token"


def rendering_results(trial: Trial) -> Iterator[CheckResult]:
    """Yield renderings of the prompts with which more is accepted than as they are.

    If the target is surer of its answers too, the text may be easier instead: that is a note.
    """
    for each in _helping(trial):
        yield _accepts_more(trial, each)


def _helping(trial: Trial) -> Iterator[TriedRendering]:
    least = LEAST_GAIN * trial.acceptance.mean_length
    for each in trial.renderings:
        if _beyond_chance(each.gain) and each.gain.difference > least:
            yield each


def _accepts_more(trial: Trial, each: TriedRendering) -> CheckResult:
    easier = each.surer_interval is None or each.surer_interval.high > 0
    then = each.acceptance
    return CheckResult(
        id=f"accepts_more_with.{each.rendering.id}",
        level=Level.NOTE if easier else Level.WARNING,
        title=f"with {each.rendering.change} this drafter accepts {then.mean_length:.2f} tokens a "
        f"round instead of {trial.acceptance.mean_length:.2f}",
        expected=f"acceptance length {then.mean_length:.2f} {_words(then.mean_length_interval)}",
        rule="paired by prompt, corrected for the number of renderings tried",
        there="the target's answers may be easier to predict so, too"
        if easier
        else f"{each.rendering.mistake}; the target is no surer of its answers so",
        change=each.rendering.change,
        certainty=Certainty.POSSIBLE,
    )


def best_repair(trial: Trial) -> Tried | None:
    """Return the repair that helps; None if none does beyond chance."""
    least = LEAST_GAIN * trial.acceptance.mean_length
    helping = [
        each
        for each in trial.tried
        if each.gain.difference > least
        and each.acceptance.marginal[0] > ALIVE_ABOVE
        and (_beyond_chance(each.gain) or _small_but_certain(each))
    ]
    if not helping:
        return None
    best = max(helping, key=lambda each: each.acceptance.mean_length)
    good = (1 - AS_GOOD) * best.acceptance.mean_length
    simple = [e for e in helping if not e.repair.weights and e.acceptance.mean_length >= good]
    best = max(simple, key=lambda each: each.acceptance.mean_length) if simple else best
    # Layers next to the right ones accept as much; with the right ones the drafter is surer.
    layers = [each for each in simple if only_layers(each) and each.all_positions]
    return max(layers, key=_surer) if only_layers(best) and layers else best


def only_layers(tried: Tried) -> bool:
    """Whether a repair changes the captured layers and nothing else."""
    return set(tried.repair.fields) == {AUX_LAYERS}


def _surer(tried: Tried) -> float:
    return tried.all_positions.first.difference if tried.all_positions else 0.0


def _beyond_chance(gain: Gain) -> bool:
    return gain.p < _CHANCE and gain.interval is not None and gain.interval.low > 0


def _small_but_certain(each: Tried) -> bool:
    """Whether the probability of the target's tokens gains beyond chance, after correction, and so
    does what is accepted over all positions.

    Probability alone could gain by confidence, which nothing is accepted for.
    """
    at = each.all_positions
    return at is not None and _beyond_chance(at.probability) and _beyond_chance(at.accepted)


def _repaired(trial: Trial, best: Tried) -> CheckResult:
    now, then, rivals = trial.acceptance, best.acceptance, _rivals(trial, best)
    low = is_alive(then) is not True
    return CheckResult(
        id=f"repaired_by.{best.repair.id}",
        level=Level.ERROR,
        title=f"with {best.repair.change} this drafter accepts {then.mean_length:.2f} tokens a "
        f"round instead of {now.mean_length:.2f}",
        expected=f"acceptance length {then.mean_length:.2f} {_words(then.mean_length_interval)}",
        rule=_RULE if _beyond_chance(best.gain) else _RULE_OF_POSITIONS,
        there=f"{now.mean_length:.2f} {_words(now.mean_length_interval)}: "
        f"{'one of: ' if rivals else ''}{'; '.join([best.repair.mistake, *rivals])}"
        f"{_as_good(trial, best)}"
        f"{_STILL_LOW if low else ''}",
        change=best.repair.change,
        certainty=Certainty.POSSIBLE
        if low or rivals or _odds(best) < LIKELY_ODDS
        else Certainty.LIKELY,
    )


_STILL_LOW = (
    f"; with it depth 1 is still not clearly above {CLEARLY_ALIVE:.0%}: another cause, or one more"
)
LIKELY_ODDS = 20.0
"""Odds of a repair against chance, and against each other repair, above which it is likely."""


def odds(p: float) -> float:
    """Return the largest odds that a p-value gives against chance, 1 / (-e p ln p) (Sellke, Bayarri
    and Berger 2001, The American Statistician 55); 1 for p above 1 / e."""
    if p <= 0:
        return math.inf
    return 1 / (-math.e * p * math.log(p)) if p < 1 / math.e else 1.0


def _odds(tried: Tried) -> float:
    at = tried.all_positions
    return odds(min(tried.gain.p, at.probability.p if at else 1.0))


def _rivals(trial: Trial, best: Tried) -> list[str]:
    """Return the mistakes that explain as much as the best repair's: the odds between them are not
    above LIKELY_ODDS. Captured layers next to each other are told apart otherwise."""
    least = LEAST_GAIN * trial.acceptance.mean_length
    return [
        one.repair.mistake
        for one in trial.tried
        if one.behind is not None
        and one.gain.difference > least
        and _beyond_chance(one.gain)
        and not (only_layers(one) and only_layers(best))
        and (one.behind.difference <= 0 or odds(one.behind.p) < LIKELY_ODDS)
    ]


def _as_good(trial: Trial, best: Tried) -> str:
    """Return the other captured layers that accept about as much as the best, in words."""
    if not only_layers(best):
        return ""
    least = (1 - LEAST_GAIN) * best.acceptance.mean_length
    others = [
        f"{list(one.repair.fields[AUX_LAYERS])} ({one.acceptance.mean_length:.2f})"
        for one in trial.tried
        if only_layers(one)
        and one is not best
        and one.prompts == best.prompts
        and one.acceptance.mean_length >= least
    ]
    return f"; {', '.join(others)} accept about as much" if others else ""


def _words(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.2f}, {interval.high:.2f}]"
