"""Turns that the states of a probe take within one engine: their order, and what comes of them."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass
class Drawn:
    """Recorded steps of one state: those of a low rate are too few for a median to see."""

    steps: int = 0
    """All of them."""
    recorded: int = 0
    above: list[float] = field(default_factory=list)
    """Of those that counted: seconds above the median of their turn, if it had others too."""

    def adds(self, step_s: float) -> float:
        """What they add, as a share of the time of all, to what the median step takes."""
        if not self.above:
            return 0.0
        return self.recorded / self.steps * statistics.fmean(self.above) / step_s


class Turns:
    """Rounds of a turn for each state, of which each round begins with another."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        """Whole ones."""
        self.drawn = {state: Drawn() for state in STATES}
        self._under_way: Round = {}
        self._taken: list[float] = []
        self._recorded: list[float] = []
        """Those of them that were."""
        self._steps = 0

    @property
    def state(self) -> str:
        """Whose turn it is."""
        return STATES[(len(self.rounds) + len(self._under_way)) % len(STATES)]

    def step(self, seconds: float, *, alike: bool, recorded: bool = False) -> bool:
        """A step is over, and with it the turn, if that is returned.

        `alike`: it did what the others do, so that it may be counted. `recorded`: by the probe.
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
