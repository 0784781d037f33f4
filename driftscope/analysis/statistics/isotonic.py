"""Weighted isotonic regression: the non-decreasing sequence nearest to measured values.

Pool adjacent violators (Barlow, Bartholomew, Bremner and Brunk 1972): neighbours in the wrong order
take their weighted mean, until none are.
"""

from __future__ import annotations

from collections.abc import Sequence


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence with the least weighted sum of squared differences from
    `values`; all weights are above 0."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, count = blocks.pop()
            mean = (before * heavy + mean * mass) / (heavy + mass)
            mass, length = heavy + mass, count + length
        blocks.append((mean, mass, length))
    return [mean for mean, _, length in blocks for _ in range(length)]
