"""What the writer's flushes take of serving: by how much the steps they fall into are longer.

The writer's thread works while the serving thread waits for the interpreter. That meets all states
of a probe that changes its state every few steps alike, so it is measured in one state, by the
steps right beside those.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Sequence
from typing import TypedDict

BESIDE = 6
"""Steps on each side that a step is held against."""
LEAST_S = 1e-4
"""Of a flush in a step: less is a thread that woke up and had nothing to do."""
Span = tuple[float, float]
"""Its begin and its end, seconds."""


class Losses(TypedDict):
    """Of steps in one state."""

    seconds: float
    """All of them together."""
    hit: list[float]
    """Of each step that a flush fell into: seconds above the median of the steps beside it."""
    other: float
    """The same of the other steps, on average: long steps are further from a median than short."""


def losses(steps: Sequence[Span], flushes: Sequence[Span]) -> Losses:
    """`steps` and `flushes` in order, by one clock."""
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
    """Of the time of all steps: what the flushes took, and 1.96 standard errors of it."""
    lost = [each - found["other"] for each in found["hit"]]
    if len(lost) < 2:
        return 0.0, 0.0
    off = 1.96 * statistics.stdev(lost) * len(lost) ** 0.5
    return sum(lost) / found["seconds"], off / found["seconds"]


def _hit(steps: Sequence[Span], flushes: Sequence[Span]) -> Iterator[int]:
    """Numbers of the steps into which a flush fell."""
    ends = [end for _, end in steps]
    for begun, over in flushes:
        number = bisect.bisect_left(ends, begun)
        while number < len(steps) and steps[number][0] < over:
            begin, end = steps[number]
            if min(end, over) - max(begin, begun) >= LEAST_S:
                yield number
            number += 1


def _beside(steps: Sequence[Span], number: int, hit: set[int]) -> float:
    """The median of the steps beside one, without those that a flush fell into."""
    around = range(max(0, number - BESIDE), min(len(steps), number + BESIDE + 1))
    lengths = [steps[n][1] - steps[n][0] for n in around if n not in hit and n != number]
    return statistics.median(lengths) if lengths else steps[number][1] - steps[number][0]
