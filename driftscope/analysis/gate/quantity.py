"""A number with its 95% interval, and arithmetic that carries the interval along."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


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
        down = _both(self.value - self.low, other.value - other.low, same)
        up = _both(self.high - self.value, other.high - other.value, same)
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


def _both(a: float, b: float, correlation: float) -> float:
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
