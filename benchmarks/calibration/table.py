"""A table of the calibration: rows of rates measured in worlds of known truth, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

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

Row: TypeAlias = Any
"""A row of a table: a dataclass of its module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One rate of a row and its bounds."""

    name: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_met(self) -> bool:
        """Whether the rate lies within its bounds."""
        return self.least <= self.value <= self.most


def slack(rate: float, trials: int) -> float:
    """Return what chance is allowed in `trials` trials of an event of this rate."""
    return ERRORS * math.sqrt(rate * (1 - rate) / trials)


def false(name: str, value: float, trials: int) -> Rate:
    """Return the rate of false answers."""
    return Rate(name=name, value=value, most=max(FALSE_AT_MOST, NOMINAL + slack(NOMINAL, trials)))


def covered(name: str, value: float, trials: int) -> Rate:
    """Return the share of the 95 % intervals that contain the truth."""
    least = min(COVERED_AT_LEAST, 1 - NOMINAL - slack(NOMINAL, trials))
    return Rate(name=name, value=value, least=least)


def power(name: str, value: float, trials: int, *, least: float = POWER_AT_LEAST) -> Rate:
    """Return the share of the trials in which what is there is found."""
    return Rate(name=name, value=value, least=least - slack(least, trials))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that `rows(trials)` measures, each with the rates that `rates(row, trials)` bounds."""

    name: str
    title: str
    """Title above the table; {trials} is replaced."""
    rows: Callable[[int], Iterable[Row]]
    rates: Callable[[Row, int], Iterator[Rate]] | None = None
    """Rates of a row to check; None: the table is for reading."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """Format of each figure that is no share, by field."""
    most_trials: int | None = None
    """Largest number of trials, where more would only take time."""
    times: int = 1
    """Trials for each one that is asked for, where one takes milliseconds: of 400 trials at a true
    rate of 5 %, one series in 20 shows 6.8 % or more."""

    def measure(self, trials: int, say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
        """Measure and print the table; return its rows, and a line for each breach of a bound."""
        trials = min(self.times * trials, self.most_trials or self.times * trials)
        rows = list(self.rows(trials))
        say(f"\n{self.title.format(trials=trials)}\n")
        for line in _lines(rows, self.formats):
            say(line)
        return rows, self.breaches(rows, trials)

    def breaches(self, rows: Sequence[Row], trials: int) -> list[str]:
        """Return one line for each rate that does not meet its bounds."""
        if self.rates is None:
            return []
        return [
            f"{self.name}: {_name(row)}: {rate.name} {rate.value:.3f}, wanted {_wanted(rate)}"
            for row in rows
            for rate in self.rates(row, trials)
            if not rate.is_met
        ]


def _lines(rows: Sequence[Row], formats: Mapping[str, str]) -> list[str]:
    names = [column.name for column in fields(rows[0])]
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[_cell(getattr(row, name), formats.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [isinstance(getattr(rows[0], name), str) for name in names]
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
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, form or (".1%" if isinstance(value, float) else ""))


def _name(row: Row) -> str:
    return ", ".join(str(getattr(row, name)) for name in row.__slots__ if name in _NAMES)


_NAMES = ("run", "world", "figure", "pairing", "at_once", "requests", "rounds", "part", "mix")
"""Fields of a row that say what it is about."""


def _wanted(rate: Rate) -> str:
    if math.isinf(rate.most):
        return f"at least {rate.least:.3f}"
    return f"at most {rate.most:.3f}" if math.isinf(rate.least) else f"{rate.least} to {rate.most}"
