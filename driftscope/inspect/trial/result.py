"""Results of a trial: what is accepted as it is, with each repair and with each rendering.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.statistics.intervals import CONFIDENCE, Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, rate_intervals, ratio_of
from driftscope.inspect.trial.inside import Inside

Rounds = Sequence[Sequence[int]]
"""Accepted tokens of each round, by prompt."""
Values = Sequence[Sequence[float]]
"""One number for each position of each prompt's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAcceptance:
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


def acceptance_of(rounds: Rounds, k: int) -> TrialAcceptance:
    """Return the acceptance over all rounds."""
    counts = np.array([len(lengths) for lengths in rounds], float)[:, None]
    reached = np.array(
        [[sum(n >= d for n in lengths) for d in range(1, k + 1)] for lengths in rounds]
    )
    rates = ratio_of(reached.astype(float), counts)
    spread, length = rate_intervals(rates), _length(rounds)
    length_spread = intervals(length)
    return TrialAcceptance(
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
        interval=Interval.between(difference - half, difference + half),
        p=min(1.0, p * comparisons),
    )


def mean_length(rounds: Rounds) -> float:
    """Return the tokens per round over all prompts."""
    return float(_length(rounds).value[0])


def _length(rounds: Rounds) -> Ratio:
    """Return the tokens per round by prompt."""
    tokens = np.array([[sum(lengths) + len(lengths)] for lengths in rounds], float)
    return ratio_of(tokens, np.array([[len(lengths)] for lengths in rounds], float))


def _mean(values: Values) -> Ratio:
    """Return the mean over all positions by prompt."""
    sums = np.array([[sum(value)] for value in values], float)
    return ratio_of(sums, np.array([[len(value)] for value in values], float))


T = TypeVar("T")


class TrialListener:
    """Listener to a trial's progress; this one ignores everything."""

    def measured(self, as_is: TrialAcceptance, repairs: int) -> None:
        """Hear what is accepted as it is, and how many repairs are tried next."""

    def each(self, items: Iterable[T], _what: str, _total: int) -> Iterable[T]:
        """Return `items`, of which there are `_total`, to be taken one by one."""
        return items


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterChange:
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
    """A repair, or another way of writing the prompts, and what is accepted with it."""

    change: DrafterChange
    acceptance: TrialAcceptance
    gain: Gain
    """Paired by prompt, corrected for the number of repairs, or of such ways, that are tried."""
    prompts: int
    """Number of prompts; of repairs that were soon given up, fewer than in the whole trial."""
    all_positions: AllPositions | None = None
    """None for another way of writing the prompts."""
    behind: Gain | None = None
    """How much longer the best repair accepts on the same prompts; None for the best one, and
    without one."""
    surer: float | None = None
    """Mean log-probability per token that the target gives to its own answers, minus that with the
    prompts as they are: above 0, the answers are easier to predict. None for a repair."""
    surer_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """A hypothesis that cannot be tried, and why."""

    id: str
    reason: str


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
    acceptance: TrialAcceptance
    """Acceptance of the drafter as it is."""
    figures: Mapping[str, tuple[float, ...]]
    """Means by depth of the figures that `drafting.FIGURES` names."""
    inside: Inside
    tried: tuple[Tried, ...]
    """All repairs, the best first."""
    renderings: tuple[Tried, ...] = ()
    """Other ways of writing the prompts, the best first."""
    not_applicable: tuple[NotApplicable, ...] = ()
    """Hypotheses that could not be tried, or were not before Ctrl-C."""
    stopped: bool = False
    """Whether Ctrl-C ended the trial; the results are those before it."""
    overflow: Overflow | None = None
    """None if every number of the drafter as it is can be held."""
    expected_length: float | None = None
    """Acceptance length that was given to compare with."""
    not_promised: tuple[str, ...] = ()
    """Reasons why an engine may accept something else than was measured here."""


STOPPED = "stopped by Ctrl-C"
"""Reason for which a hypothesis was not tried."""


def by_reason(left_out: Iterable[NotApplicable]) -> dict[str, list[str]]:
    """Return the ids of hypotheses that were not tried, by the reason."""
    found: dict[str, list[str]] = {}
    for skipped in left_out:
        found.setdefault(skipped.reason, []).append(skipped.id)
    return found


def stopped_before(changes: Iterable[DrafterChange]) -> Iterator[NotApplicable]:
    """Return the changes that Ctrl-C left out."""
    return (NotApplicable(id=change.id, reason=STOPPED) for change in changes)
