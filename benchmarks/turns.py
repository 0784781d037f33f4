"""Turns that the states of a probe take within one engine, and what the writer's flushes add.

Flushes affect all states equally if the probe changes its state every few steps. They are therefore
measured in one state, by comparison with the neighbouring steps."""

from __future__ import annotations

import bisect
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

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
        end - begin - _neighbour_median(steps, number, hit)
        for number, (begin, end) in enumerate(steps)
    ]
    return {
        "seconds": sum(end - begin for begin, end in steps),
        "hit": [excess[number] for number in sorted(hit)],
        "other": statistics.fmean(e for number, e in enumerate(excess) if number not in hit),
    }


def share(found: Losses) -> tuple[float, float]:
    """Return the share of the time of all steps that the flushes took, and 1.96 standard errors of
    it."""
    lost = [step_s - found["other"] for step_s in found["hit"]]
    if len(lost) < 2:
        return 0.0, 0.0
    off = 1.96 * statistics.stdev(lost) * len(lost) ** 0.5
    return sum(lost) / found["seconds"], off / found["seconds"]


def _hit(steps: Sequence[Span], flushes: Sequence[Span]) -> Iterator[int]:
    """Yield the indices of the steps into which a flush fell."""
    ends = [end for _, end in steps]
    for begun, ended in flushes:
        number = bisect.bisect_left(ends, begun)
        while number < len(steps) and steps[number][0] < ended:
            begin, end = steps[number]
            if min(end, ended) - max(begin, begun) >= LEAST_S:
                yield number
            number += 1


def _neighbour_median(steps: Sequence[Span], number: int, hit: set[int]) -> float:
    """Return the median of the neighbouring steps, without those that a flush fell into."""
    around = range(max(0, number - BESIDE), min(len(steps), number + BESIDE + 1))
    lengths = [steps[n][1] - steps[n][0] for n in around if n not in hit and n != number]
    return statistics.median(lengths) if lengths else steps[number][1] - steps[number][0]


ABSENT, AGAIN, STOPPED = "absent", "absent again", "stopped"
BUDGET, EVERY = "budget 1%", "every round"
SETTINGS: dict[str, dict[str, Any]] = {
    STOPPED: {"stop": True},
    BUDGET: {"budget": 0.01},
    EVERY: {"every": 1},
}
"""Sampler settings of the states in which hooks are installed: stopped, default budget, every round
recorded."""
STATES = (ABSENT, *SETTINGS, AGAIN)
"""States of the probe; in the first and the last there is no hook on vLLM."""
COUNTED, UNCOUNTED = 6, 2
"""Steps of a turn that count, after the first ones that do not: those contain switching hooks and
work left over from a recorded step."""
TRIMMED = 0.2
"""Share of the rounds that is trimmed at each end, because of other load on the machine."""
RESAMPLED = 2000
Round = dict[str, tuple[float, float]]
"""State -> seconds of its counted steps: their median, and their mean."""


@dataclass
class Drawn:
    """Recorded steps of one state: at a low rate they are too few for a median to show."""

    steps: int = 0
    """Number of all steps."""
    recorded: int = 0
    above: list[float] = field(default_factory=list)
    """Seconds above the median of their turn, of the recorded steps that counted, if the turn had
    others too."""

    def adds(self, step_s: float) -> float:
        """Return what the recorded steps add to the time of the median step, as a share averaged
        over all."""
        if not self.above:
            return 0.0
        return self.recorded / self.steps * statistics.fmean(self.above) / step_s


class Turns:
    """Rounds with one turn for each state; each round begins with another state."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        """Complete rounds."""
        self.drawn = {state: Drawn() for state in STATES}
        self._under_way: Round = {}
        self._taken: list[float] = []
        self._recorded: list[float] = []
        """Durations of the recorded steps among them, in seconds."""
        self._steps = 0

    @property
    def state(self) -> str:
        """State whose turn it is."""
        return STATES[(len(self.rounds) + len(self._under_way)) % len(STATES)]

    def step(self, seconds: float, *, alike: bool, recorded: bool = False) -> bool:
        """Record a finished step; return whether it ended the turn.

        `alike`: the step did what the others do, so that it may be counted. `recorded`: the probe
        recorded it.
        """
        self._steps += 1
        drawn = self.drawn[self.state]
        drawn.steps += 1
        drawn.recorded += recorded
        if alike and self._steps > UNCOUNTED:
            self._taken.append(seconds)
            if recorded:
                self._recorded.append(seconds)
        if len(self._taken) < COUNTED:
            return False
        median, mean = statistics.median(self._taken), statistics.fmean(self._taken)
        if len(self._recorded) < COUNTED:
            drawn.above += [round(seconds - median, 6) for seconds in self._recorded]
        self._recorded = []
        self._under_way[self.state] = round(median, 6), round(mean, 6)
        self._taken, self._steps = [], 0
        if len(self._under_way) == len(STATES):
            self.rounds.append(self._under_way)
            self._under_way = {}
        return True


def ratios(rounds: Sequence[Round], state: str) -> list[float]:
    """Return, for each round, the ratio of the time per step in a state to that without a hook. For
    AGAIN the base is the other state without a hook alone, which shows the ratio when there is no
    difference."""
    base = (ABSENT,) if state == AGAIN else (ABSENT, AGAIN)
    return [times[state][0] / statistics.fmean(times[name][0] for name in base) for times in rounds]


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without TRIMMED of the values at each end."""
    ordered, off = sorted(values), int(len(values) * TRIMMED)
    return statistics.fmean(ordered[off : len(ordered) - off])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the trimmed means of as many values resampled from these."""
    generator = random.Random(0)
    found = sorted(trimmed_mean(generator.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return found[int(0.025 * RESAMPLED)], found[int(0.975 * RESAMPLED) - 1]
