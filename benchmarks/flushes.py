"""Measure how much the writer's flushes lengthen the serving steps into which they fall.

The writer's thread works while the serving thread waits for the interpreter lock. If a probe
changes its state every few steps, flushes affect all states equally. They are therefore measured in
one state, by comparison with the neighbouring steps.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Sequence
from typing import TypedDict

BESIDE = 6
"""Number of steps on each side with which a step is compared."""
LEAST_S = 1e-4
"""Shortest part of a flush in a step that counts, in seconds: less is a thread that woke up and had
nothing to do."""
Span = tuple[float, float]
"""Start and end, in seconds."""


class Losses(TypedDict):
    """Losses of steps in one state."""

    seconds: float
    """Total duration of the steps, in seconds."""
    hit: list[float]
    """Seconds above the median of the neighbouring steps, for each step that a flush fell into."""
    other: float
    """Mean excess of the other steps, in seconds: long steps are further from a median than short
    ones."""


def losses(steps: Sequence[Span], flushes: Sequence[Span]) -> Losses:
    """Return the losses; `steps` and `flushes` are in order and use the same clock."""
    hit = set(_hit(steps, flushes))
    excess = [
        end - begin - _beside(steps, number, hit) for number, (begin, end) in enumerate(steps)
    ]
    return {
        "seconds": sum(end - begin for begin, end in steps),
        "hit": [excess[number] for number in sorted(hit)],
        "other": statistics.fmean(e for number, e in enumerate(excess) if number not in hit),
    }


def share(found: Losses) -> tuple[float, float]:
    """Return the share of the time of all steps that the flushes took, and 1.96 standard errors of
    it."""
    lost = [each - found["other"] for each in found["hit"]]
    if len(lost) < 2:
        return 0.0, 0.0
    off = 1.96 * statistics.stdev(lost) * len(lost) ** 0.5
    return sum(lost) / found["seconds"], off / found["seconds"]


def _hit(steps: Sequence[Span], flushes: Sequence[Span]) -> Iterator[int]:
    """Yield the indices of the steps into which a flush fell."""
    ends = [end for _, end in steps]
    for begun, over in flushes:
        number = bisect.bisect_left(ends, begun)
        while number < len(steps) and steps[number][0] < over:
            begin, end = steps[number]
            if min(end, over) - max(begin, begun) >= LEAST_S:
                yield number
            number += 1


def _beside(steps: Sequence[Span], number: int, hit: set[int]) -> float:
    """Return the median of the neighbouring steps, without those that a flush fell into."""
    around = range(max(0, number - BESIDE), min(len(steps), number + BESIDE + 1))
    lengths = [steps[n][1] - steps[n][0] for n in around if n not in hit and n != number]
    return statistics.median(lengths) if lengths else steps[number][1] - steps[number][0]
