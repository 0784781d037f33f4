"""Figures with intervals, and the relation of a run's figures to its baseline's in a rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from driftscope.analysis.comparability import UNPAIRED, Pairing, common_mix, pair
from driftscope.analysis.compare import figures_at
from driftscope.analysis.figures.rounds import Rounds, Side
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.statistics.intervals import student
from driftscope.analysis.statistics.ratio import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Identity of a figure of the run, or of the baseline, which answered the same prompts."""

    figure: str
    baseline: bool
    correlation: float
    """Correlation of the two runs' errors."""
    sign: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A value with its interval; `low` and `high` are the value itself if no interval is known.

    Sums and differences of two estimates follow the square-and-add rule (Newcombe 1998; Zou and
    Donner 2008), products and ratios of positive ones the same rule on their logarithms; others
    take the widest range. Two estimates count as independent of each other, except for the same
    figure of two runs that answered the same prompts, whose correlation is known (Zou 2007).
    """

    value: float
    low: float
    high: float
    shared: Shared | None = None
    """Figure whose errors it shares with the other run's figure; None unless it is a multiple of a
    run's figure."""

    @classmethod
    def exact(cls, value: float) -> Quantity:
        """Return a number without an interval."""
        return cls(value=value, low=value, high=value)

    @property
    def is_exact(self) -> bool:
        """Whether no interval is known."""
        return self.low == self.value == self.high

    def __neg__(self) -> Quantity:
        return Quantity(
            value=-self.value, low=-self.high, high=-self.low, shared=_turned(self.shared, -1.0)
        )

    def __add__(self, other: Quantity) -> Quantity:
        value, same = self.value + other.value, _correlation(self.shared, other.shared)
        down = _side_of_sum(self.value - self.low, other.value - other.low, same)
        up = _side_of_sum(self.high - self.value, other.high - other.value, same)
        return Quantity(value=value, low=value - down, high=value + up)

    def __sub__(self, other: Quantity) -> Quantity:
        return self + -other

    def __mul__(self, other: Quantity) -> Quantity:
        if self._both_positive(other):
            return _exp(self._log() + other._log(), self.value * other.value)
        ends = [_times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Quantity(
            value=_times(self.value, other.value),
            low=min(ends),
            high=max(ends),
            shared=self._scaled(other) or other._scaled(self),
        )

    def __truediv__(self, other: Quantity) -> Quantity:
        """Divide by `other`; raises ZeroDivisionError."""
        value = self.value / other.value
        if self._both_positive(other):
            return _exp(self._log() - other._log(), value)
        if other.low <= 0 <= other.high:
            return Quantity(value=value, low=-math.inf, high=math.inf)
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Quantity(value=value, low=min(ends), high=max(ends), shared=self._scaled(other))

    def _scaled(self, by: Quantity) -> Shared | None:
        """Return the shared figure after a multiplication or division; None if `by` is not
        exact."""
        return _turned(self.shared, math.copysign(1.0, by.value)) if by.is_exact else None

    def _both_positive(self, other: Quantity) -> bool:
        uncertain = not self.is_exact and not other.is_exact
        return uncertain and self.low > 0 and other.low > 0

    def _log(self) -> Quantity:
        return Quantity(
            value=math.log(self.value),
            low=math.log(self.low),
            high=math.log(self.high),
            shared=self.shared,
        )


def _turned(shared: Shared | None, sign: float) -> Shared | None:
    return None if shared is None else replace(shared, sign=sign * shared.sign)


def _correlation(a: Shared | None, b: Shared | None) -> float:
    """Return the correlation of the errors of two estimates."""
    if a is None or b is None or a.figure != b.figure or a.baseline == b.baseline:
        return 0.0
    return a.correlation * a.sign * b.sign


def _side_of_sum(a: float, b: float, correlation: float) -> float:
    """Return one side of a sum's interval, from those of its terms; infinite sides stay
    infinite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.hypot(a, b)
    return math.sqrt(max(a * a + b * b + 2.0 * correlation * a * b, 0.0))


def _exp(logs: Quantity, value: float) -> Quantity:
    """Return the interval of a product or ratio from that of its logarithm; rounding leaves
    `value` inside."""
    low, high = math.exp(logs.low), math.exp(logs.high)
    return Quantity(value=value, low=min(low, value), high=max(high, value))


def _times(a: float, b: float) -> float:
    """Return a product in which 0 times anything is 0, even times the infinite end of an
    interval."""
    return 0.0 if a == 0 or b == 0 else a * b


LENGTH, MARGINAL = "acceptance.mean_length", "acceptance.marginal"
AT_MIX = " at one mix of labels"
"""Words after the path of a figure that is taken at a mix of labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Relation of a run to its baseline. Figures are named by their path in the JSON report."""

    correlated: Mapping[str, float] = field(default_factory=dict)
    """Correlation of a figure's errors in run and baseline; {} if they did not answer the same
    prompts."""
    mix: Mapping[str, float] = field(default_factory=dict)
    """Share of each label at which the runs are compared; {} if they are compared as served."""
    run: Mapping[str, Quantity] = field(default_factory=dict)
    """The run's figures at the mix, or from the part of it that a baseline has; {} if its own
    figures are compared."""
    baseline: Mapping[str, Quantity] = field(default_factory=dict)
    basis: str = AT_MIX
    """Words after the path of a figure in `run` or `baseline`."""
    fixed: bool = False
    """Whether the baseline's intervals stay as they are, however many requests the run has."""

    def at_mix(self, figure: str, *, baseline: bool) -> Quantity | None:
        """Return a figure of the run, or of the baseline, at the mix; None if it has none there."""
        return (self.baseline if baseline else self.run).get(figure)


def relation_of(run: Sums, baseline: Sums) -> Relation:
    """Return how a run's figures compare with its baseline's: their correlation if requests are
    paired; otherwise both runs' figures at one mix of labels, if they served labels in other
    shares."""
    there = [np.zeros(len(sums.requests), dtype=np.bool_) for sums in (run, baseline)]
    for mine, sums in zip(there, (run, baseline), strict=True):
        mine[sums.rounds.request[sums.rounds.rounds > 0]] = True
    pairing = pair(run.requests, baseline.requests, *there)
    if pairing.how != UNPAIRED:
        share = len(pairing.first) / np.sqrt(float(there[0].sum()) * float(there[1].sum()))
        return Relation(correlated=_correlations(run, baseline, pairing, float(share)))
    return at_one_mix(run.side, baseline.side)


def at_one_mix(run: Side, baseline: Side) -> Relation:
    """Return how a run compares with a baseline that did not answer the same prompts."""
    sides = run, baseline
    mix, k = common_mix(*sides), min(side.rounds.k for side in sides)
    if not mix or not k:
        return Relation()
    same_k = len({side.rounds.k for side in sides}) == 1
    ours, theirs = (_named(figures_at(side, mix, k), same_k=same_k) for side in sides)
    return Relation(mix=mix, run=ours, baseline=theirs)


def _named(figures: Ratio, *, same_k: bool) -> dict[str, Quantity]:
    """Return the acceptance length and the marginal rates by path, also counted from the last depth
    if both runs have the same one; figures without an interval are left out."""
    half, k = student(figures.df) * figures.error, len(figures.value) - 1
    names = {LENGTH: 0} | {f"{MARGINAL}[{d}]": d + 1 for d in range(k)}
    if same_k:
        names |= {f"{MARGINAL}[{d - k}]": d + 1 for d in range(k)}
    return {
        name: Quantity(
            value=float(figures.value[at]),
            low=float(figures.value[at] - half[at]),
            high=float(figures.value[at] + half[at]),
        )
        for name, at in names.items()
        if figures.supported[at] and np.isfinite(half[at])
    }


def _correlations(run: Sums, baseline: Sums, pairing: Pairing, share: float) -> Mapping[str, float]:
    """Return correlations from the jackknife's influences over pairs of requests.

    Requests without a partner, which the figures also count, have nothing in common, so the
    correlation is reduced by the `share` of those that have one.
    """
    return {
        name: share * value
        for name, value in _correlations_of_pairs(run, baseline, pairing).items()
    }


def _correlations_of_pairs(run: Sums, baseline: Sums, pairing: Pairing) -> dict[str, float]:
    ours, theirs = _rounds(run, pairing.first), _rounds(baseline, pairing.second)
    out = of_acceptance(ours, theirs.grouped_like(ours))
    times = run.requests.tpot_s[pairing.first], baseline.requests.tpot_s[pairing.second]
    known = np.isfinite(times[0]) & np.isfinite(times[1])
    if known.sum() > 1:
        same = _influence_correlation(*(values[known] - values[known].mean() for values in times))
        out |= {"latency.tpot_s": same} if np.isfinite(same) else {}
    return out


def of_acceptance(ours: Rounds, theirs: Rounds) -> dict[str, float]:
    """Return the correlations of the acceptance length and of the rate at each depth, for rounds
    whose rows are pairs; a figure that does not vary is left out."""
    deep = ours.k, theirs.k
    k = min(deep)
    a, b = (
        np.hstack([rounds.length_ratio().influence, rounds.marginal_ratio().influence[:, :k]])
        for rounds in (ours, theirs)
    )
    names = [LENGTH, *(f"{MARGINAL}[{d}]" for d in range(k))]
    out = {name: _influence_correlation(a[:, at], b[:, at]) for at, name in enumerate(names)}
    if deep[0] == deep[1]:  # otherwise their last depths differ
        out |= {f"{MARGINAL}[{d - k}]": out[names[d + 1]] for d in range(k)}
    return {name: value for name, value in out.items() if np.isfinite(value)}


def _rounds(run: Sums, requests: Codes) -> Rounds:
    """Return the rows of these requests, in this order."""
    place = np.zeros(len(run.requests), dtype=np.int64)
    place[run.rounds.request] = np.arange(len(run.rounds.request))
    return run.rounds.where(place[requests])


def _influence_correlation(a: Matrix, b: Matrix) -> float:
    size = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum() / size) if size > 0 else float("nan")
