"""A table of the calibration: rows of rates measured in worlds of known truth, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from driftscope.analysis.statistics.intervals import Interval

NOMINAL = 0.05
FALSE_AT_MOST = 0.068
"""Largest share of false answers: the nominal 5 % and 1.64 standard errors of 400 trials."""
COVERED_AT_LEAST = 0.93
COVERED_OF_FEW = 0.9
"""Smallest coverage over few clusters or spans of time."""
POWER_AT_LEAST = 0.9
ERRORS = 3.1
"""Standard errors that chance is allowed with fewer trials than the bounds are made for. About
fifty rates are checked together, of which one in five hundred may pass a bound of so many."""

Figures: TypeAlias = Mapping[str, Any]
"""Figures by name: a share, a number, words, or None where no trial gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate of a row and its bounds."""

    name: str
    value: float | None
    """None: no trial gave one, so that nothing is checked."""
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_met(self) -> bool:
        """Whether the rate lies within its bounds."""
        return self.value is None or self.least <= self.value <= self.most


def slack(rate: float, trials: int) -> float:
    """Return what chance is allowed in `trials` trials of an event of this rate."""
    return ERRORS * math.sqrt(rate * (1 - rate) / trials)


def false(name: str, value: float | None, trials: int) -> Rate:
    """Return the rate of false answers."""
    return Rate(name=name, value=value, most=max(FALSE_AT_MOST, NOMINAL + slack(NOMINAL, trials)))


def covered(name: str, value: float | None, trials: int) -> Rate:
    """Return the share of the 95 % intervals that contain the truth."""
    least = min(COVERED_AT_LEAST, 1 - NOMINAL - slack(NOMINAL, trials))
    return Rate(name=name, value=value, least=least)


def power(name: str, value: float | None, trials: int, *, least: float = POWER_AT_LEAST) -> Rate:
    """Return the share of the trials in which what is there is found."""
    return Rate(name=name, value=value, least=least - slack(least, trials))


def holds(interval: Interval | None, truth: float) -> bool | None:
    """Return whether an interval contains the truth; None without an interval."""
    return None if interval is None else interval.low <= truth <= interval.high


def known(values: Iterable[Any]) -> list[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def mean_of(trial: Callable[[Any, int], Figures]) -> Callable[[Any, int], Figures]:
    """Return what measures a world by its trials: `trial(truth, seed)` returns the figures of one,
    of which the means are taken. A figure may be several numbers, all of which count, or None."""

    def figures(truth: Any, trials: int) -> Figures:
        made = [trial(truth, seed) for seed in range(trials)]
        return {name: _mean([one[name] for one in made]) for name in made[0]}

    return figures


def _mean(values: Sequence[Any]) -> float | None:
    every = np.hstack([np.empty(0), *known(values)])
    return float(every.mean()) if len(every) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures that were measured in one world."""

    world: str
    figures: Figures
    truth: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Worlds of known truth, each with the figures that `figures(truth, trials)` measures, of which
    `rates(truth, figures, trials)` bounds some."""

    name: str
    title: str
    """Title above the table; {trials} is replaced."""
    worlds: Mapping[str, Any]
    """Truth of each world."""
    figures: Callable[[Any, int], Figures]
    rates: Callable[[Any, Figures, int], Iterator[Rate]]
    formats: Mapping[str, str] = field(default_factory=dict)
    """Format of each figure that is no share, by name."""
    most_trials: int | None = None
    """Largest number of trials, where more would only take time."""
    times: int = 1
    """Trials for each one that is asked for, where one takes milliseconds: of 400 trials at a true
    rate of 5 %, one series in 20 shows 6.8 % or more."""

    def row(self, world: str, trials: int) -> Row:
        """Measure one world."""
        truth = self.worlds[world]
        return Row(world=world, truth=truth, figures=self.figures(truth, trials))

    def measure(self, trials: int, say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
        """Measure and print the table; return its rows, and a line for each breach of a bound."""
        trials = min(self.times * trials, self.most_trials or self.times * trials)
        rows = [self.row(world, trials) for world in self.worlds]
        say(f"\n{self.title.format(trials=trials)}\n")
        for line in _lines(rows, self.formats):
            say(line)
        return rows, self.breaches(rows, trials)

    def breaches(self, rows: Sequence[Row], trials: int) -> list[str]:
        """Return one line for each rate that does not meet its bounds."""
        return [
            f"{self.name}: {row.world}: {rate.name} {rate.value:.3f}, wanted {_wanted(rate)}"
            for row in rows
            for rate in self.rates(row.truth, row.figures, trials)
            if not rate.is_met
        ]


def _lines(rows: Sequence[Row], formats: Mapping[str, str]) -> list[str]:
    names = list(rows[0].figures)
    cells = [["world", *(name.replace("_", " ") for name in names)]]
    cells += [
        [row.world, *(_cell(row.figures[name], formats.get(name)) for name in names)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [True, *(isinstance(rows[0].figures[name], str) for name in names)]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, words, strict=True)
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any, form: str | None) -> str:
    if value is None:
        return ""
    return format(value, form or (".1%" if isinstance(value, float) else ""))


def _wanted(rate: Rate) -> str:
    if math.isinf(rate.most):
        return f"at least {rate.least:.3f}"
    return f"at most {rate.most:.3f}" if math.isinf(rate.least) else f"{rate.least} to {rate.most}"
