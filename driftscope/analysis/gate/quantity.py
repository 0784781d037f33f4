"""A number with its 95% interval, and arithmetic that carries the interval along."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """`low` and `high` are the value itself where no interval is known.

    Sums and differences of two estimates follow the square-and-add rule (Newcombe 1998; Zou and
    Donner 2008), products and ratios of positive ones the same rule on their logarithms; others
    take the widest range. Estimates count as independent of each other, which is wider than need
    be where two runs answered the same prompts.
    """

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Quantity:
        """A number without an interval."""
        return cls(value=value, low=value, high=value)

    @property
    def is_exact(self) -> bool:
        """Whether no interval is known."""
        return self.low == self.value == self.high

    def __neg__(self) -> Quantity:
        return Quantity(value=-self.value, low=-self.high, high=-self.low)

    def __add__(self, other: Quantity) -> Quantity:
        value = self.value + other.value
        down = math.hypot(self.value - self.low, other.value - other.low)
        up = math.hypot(self.high - self.value, other.high - other.value)
        return Quantity(value=value, low=value - down, high=value + up)

    def __sub__(self, other: Quantity) -> Quantity:
        return self + -other

    def __mul__(self, other: Quantity) -> Quantity:
        if self._both_positive(other):
            return _exp(self._log() + other._log(), self.value * other.value)
        ends = [_times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Quantity(value=_times(self.value, other.value), low=min(ends), high=max(ends))

    def __truediv__(self, other: Quantity) -> Quantity:
        """Raises ZeroDivisionError."""
        value = self.value / other.value
        if self._both_positive(other):
            return _exp(self._log() - other._log(), value)
        if other.low <= 0 <= other.high:
            return Quantity(value=value, low=-math.inf, high=math.inf)
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Quantity(value=value, low=min(ends), high=max(ends))

    def _both_positive(self, other: Quantity) -> bool:
        uncertain = not self.is_exact and not other.is_exact
        return uncertain and self.low > 0 and other.low > 0

    def _log(self) -> Quantity:
        return Quantity(
            value=math.log(self.value), low=math.log(self.low), high=math.log(self.high)
        )


def _exp(logs: Quantity, value: float) -> Quantity:
    return Quantity(value=value, low=math.exp(logs.low), high=math.exp(logs.high))


def _times(a: float, b: float) -> float:
    """0 times anything is 0, also times the infinite end of an interval."""
    return 0.0 if a == 0 or b == 0 else a * b
