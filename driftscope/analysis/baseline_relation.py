"""Figures with intervals, and the relation of a run's figures to its baseline's in a rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from driftscope.analysis.comparability import NO_DIFFERENCE, Comparability, K
from driftscope.analysis.compare import LENGTH, MARGINAL, Comparison, Difference
from driftscope.analysis.number_words import count
from driftscope.analysis.pairing import UNPAIRED


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
        value = self.value + other.value
        if (
            self.shared is None
            or other.shared is None
            or self.shared.figure != other.shared.figure
            or self.shared.baseline == other.shared.baseline
        ):
            same = 0.0
        else:
            same = self.shared.correlation * self.shared.sign * other.shared.sign
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


AT_MIX = " at one mix of labels"
"""Words after the path of a figure that is taken at a mix of labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Relation of a run to its baseline. Figures are named by their path in the JSON report."""

    run: Mapping[str, Quantity] = field(default_factory=dict)
    """The run's figures as they are compared: over pairs, or at one mix of labels; {} if its own
    figures are compared."""
    baseline: Mapping[str, Quantity] = field(default_factory=dict)
    basis: Mapping[str, str] = field(default_factory=dict)
    """Words after the path of a figure in `run` or `baseline`."""
    fixed: bool = False
    """Whether the baseline's intervals stay as they are, however many requests the run has."""
    comparability: Comparability = NO_DIFFERENCE
    """Circumstances in which run and baseline differ, which can explain a difference."""

    def compared(self, figure: str, *, baseline: bool) -> Quantity | None:
        """Return a figure of the run, or of the baseline, as it is compared; None if it has none
        there."""
        return (self.baseline if baseline else self.run).get(figure)


def relation_of(comparisons: Iterable[Comparison], comparability: Comparability) -> Relation:
    """Return the relation of a run to its baseline, the first run of each comparison: a rule takes
    the figures, the pairs and the intervals that `driftscope compare` shows."""
    run: dict[str, Quantity] = {}
    baseline: dict[str, Quantity] = {}
    basis: dict[str, str] = {}
    for comparison in comparisons:
        words = AT_MIX if comparison.mix else ""
        if comparison.pairing != UNPAIRED:
            words = f" over {count(comparison.pairs, 'pair')}"
        for row in comparison.differences:
            if (figures := compared_figures(row)) is None:
                continue
            for name in _paths(row, comparison):
                baseline[name], run[name] = figures
                basis[name] = words
    return Relation(run=run, baseline=baseline, basis=basis, comparability=comparability)


def compared_figures(row: Difference) -> tuple[Quantity, Quantity] | None:
    """Return the figures of both runs, whose difference has the interval of `row`; None without
    one."""
    if row.interval is None or row.first_interval is None or row.second_interval is None:
        return None
    halves = [(ends.high - ends.low) / 2 for ends in (row.first_interval, row.second_interval)]
    half, both = (row.interval.high - row.interval.low) / 2, 2 * halves[0] * halves[1]
    same = (halves[0] ** 2 + halves[1] ** 2 - half**2) / both if both else 0.0
    figure = f"{row.segment}/{row.metric}/{row.depth}"
    correlation = min(max(same, -1.0), 1.0)
    first, second = (
        Quantity(
            value=value,
            low=ends.low,
            high=ends.high,
            shared=Shared(figure=figure, baseline=baseline, correlation=correlation),
        )
        for value, ends, baseline in (
            (row.first, row.first_interval, True),
            (row.second, row.second_interval, False),
        )
    )
    return first, second


def change_of(row: Difference) -> Quantity | None:
    """Return the second figure over the first, minus 1; None without an interval."""
    figures = compared_figures(row)
    if figures is None or not figures[0].value > 0:
        return None
    return figures[1] / figures[0] - Quantity.exact(1.0)


def _paths(row: Difference, comparison: Comparison) -> Iterator[str]:
    """Yield the paths of a compared figure in the JSON report; that of a depth also counted from
    the last one, if both runs drafted the same K."""
    if row.segment:
        if row.metric == LENGTH:
            label = f".{row.segment}" if row.segment.isidentifier() else f"[{row.segment!r}]"
            yield f"segments{label}.mean_length"
        return
    if row.depth is None:
        yield row.metric
        return
    yield f"{row.metric}[{row.depth - 1}]"
    if not any(found.name == K for found in comparison.comparability.differences):
        yield f"{row.metric}[{row.depth - 1 - len(comparison.at(MARGINAL))}]"
