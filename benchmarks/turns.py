"""Turns that the states of a probe take within one engine: their order, and what comes of them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

ABSENT, AGAIN, STOPPED = "absent", "absent again", "stopped"
BUDGET, EVERY = "budget 1%", "every round"
STATES = (ABSENT, STOPPED, BUDGET, EVERY, AGAIN)
"""No hook on vLLM, twice; installed, and stopped; by its default budget; every round recorded."""
HOOKED = (STOPPED, BUDGET, EVERY)
COUNTED, UNCOUNTED = 6, 2
"""Steps of a turn, after the first ones: hooks go on or off in those, and what a recorded step left
to be done ends."""
TRIMMED = 0.2
"""Of the rounds, at each end: what else the machine did."""
RESAMPLED = 2000
Round = dict[str, tuple[float, float]]
"""State -> seconds of its counted steps: their median, and their mean. The writer's flushes, which
meet all states alike, fall into one step of forty; `benchmarks.flushes` has them."""


class Turns:
    """Rounds of a turn for each state, of which each round begins with another."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        """Whole ones."""
        self._under_way: Round = {}
        self._taken: list[float] = []
        self._steps = 0

    @property
    def state(self) -> str:
        """Whose turn it is."""
        return STATES[(len(self.rounds) + len(self._under_way)) % len(STATES)]

    def step(self, seconds: float, *, alike: bool) -> bool:
        """A step is over, and with it the turn, if that is returned.

        `alike`: it did what the others do, so that it may be counted.
        """
        self._steps += 1
        if alike and self._steps > UNCOUNTED:
            self._taken.append(seconds)
        if len(self._taken) < COUNTED:
            return False
        median, mean = statistics.median(self._taken), statistics.fmean(self._taken)
        self._under_way[self.state] = round(median, 6), round(mean, 6)
        self._taken, self._steps = [], 0
        if len(self._under_way) == len(STATES):
            self.rounds.append(self._under_way)
            self._under_way = {}
        return True


def ratios(rounds: Sequence[Round], state: str, *, of_means: bool = False) -> list[float]:
    """Of each round: time per step in a state to that without a hook. That of AGAIN is to the other
    one alone, which says what a ratio is where there is no difference."""
    base = (ABSENT,) if state == AGAIN else (ABSENT, AGAIN)
    return [
        each[state][of_means] / statistics.fmean(each[name][of_means] for name in base)
        for each in rounds
    ]


def trimmed_mean(values: Sequence[float]) -> float:
    """Without TRIMMED of them at each end."""
    ordered, off = sorted(values), int(len(values) * TRIMMED)
    return statistics.fmean(ordered[off : len(ordered) - off])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """What holds 95 % of the trimmed means of as many values drawn from these."""
    generator = random.Random(0)
    found = sorted(trimmed_mean(generator.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return found[int(0.025 * RESAMPLED)], found[int(0.975 * RESAMPLED) - 1]
