"""Probability that events as rare as expected occur so often."""

from __future__ import annotations


def as_many(observed: int, expected: float) -> float:
    """Return the probability of at least `observed` events, 1 or more, if `expected` are expected
    (Poisson; the distribution of the sum of many rare events, Le Cam 1960)."""
    from scipy.special import gammainc

    return float(gammainc(observed, expected))
