"""The harness of the calibration: worlds of known truth, one trial of them, and what must be said.

`@table(name, title, worlds=..., wanted=...)` makes a table of a function `trial(truth, seed)` that
returns the figures of one trial; `wanted(truth)` tells which of them must lie within which bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from driftscope.analysis.statistics.intervals import Interval

NOMINAL = 0.05
ERRORS = 3.1
"""Standard errors that chance is allowed with fewer trials than the bounds are made for. About
fifty rates are checked together, of which one in five hundred may pass a bound of so many."""
_SPREAD = math.sqrt(NOMINAL * (1 - NOMINAL))

Figures: TypeAlias = Mapping[str, Any]
"""Figures by name: a share, a number, words, or None where no trial gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bounds of a figure, which chance widens where trials are few."""

    least: float = -math.inf
    most: float = math.inf
    spread: float = 0.0
    """Standard deviation of one trial."""
    margin: float = 0.0
    """Distance from the bound to what is wanted in the limit of many trials."""
    per: str = ""
    """Figure that is the share of the trials that count; "": all do."""

    def limits(self, trials: float) -> tuple[float, float]:
        """Return the bounds in so many trials."""
        wider = max(0.0, ERRORS * self.spread / math.sqrt(max(trials, 1)) - self.margin)
        return self.least - wider, self.most + wider


def found(least: float) -> Bound:
    """Return the bound of the share of trials in which what is there must be found."""
    return Bound(least=least, spread=math.sqrt(least * (1 - least)))


FOUND, MOSTLY = found(0.9), found(0.8)
NEVER = Bound(most=0.068, spread=_SPREAD, margin=0.018)
"""False answers: 5 %, or with 400 trials that and 1.64 standard errors."""
COVERED = Bound(least=0.93, spread=_SPREAD, margin=0.02)
"""Share of the 95 % intervals that contain the truth."""
COVERED_BY_FEW = Bound(least=0.9, spread=_SPREAD)
"""Share of them that do so with few clusters or spans of time."""


def within(size: float, *, spread: float = 0.0) -> Bound:
    """Return the bound of an error."""
    return Bound(least=-size, most=size, spread=spread)


def holds(interval: Interval | None, truth: float) -> bool | None:
    """Return whether an interval contains the truth; None without an interval."""
    return None if interval is None else interval.low <= truth <= interval.high


def known(values: Iterator[Any] | Sequence[Any]) -> list[Any]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def means(_: Any, made: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over the trials. A figure of one trial may be several numbers,
    all of which count, or None."""
    columns = {name: np.hstack([[], *known([one[name] for one in made])]) for name in made[0]}
    return {name: float(column.mean()) if len(column) else None for name, column in columns.items()}


def at_worst(_: Any, made: Sequence[Figures]) -> Figures:
    """Return the mean of each figure at the depth where it is worst: of answers, which are true or
    false, the smallest share, and of errors the largest size."""
    out: dict[str, float | None] = {}
    for name in made[0]:
        by_depth = np.array(known([one[name] for one in made]))
        mean = by_depth.mean(axis=0) if len(by_depth) else None
        worst = np.min if by_depth.dtype == np.bool_ else lambda errors: np.abs(errors).max()
        out[name] = None if mean is None else float(worst(mean))
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures that were measured in one world."""

    world: str
    figures: Figures
    truth: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Worlds of known truth, and how often what must be said of them is said."""

    name: str
    title: str
    """Title above the table; {trials} is replaced."""
    worlds: Mapping[str, Any]
    """Truth of each world."""
    trial: Callable[[Any, int], Figures]
    """Function that returns the figures of one trial from truth and seed."""
    wanted: Callable[[Any], Mapping[str, Bound]]
    """Function that returns bounds by figure from the truth; of "a+b" the sum is bounded."""
    summary: Callable[[Any, Sequence[Figures]], Figures] = means
    """Function that returns the figures of a world from those of its trials."""
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
        figures_of_trials = [self.trial(truth, seed) for seed in range(trials)]
        return Row(world=world, truth=truth, figures=self.summary(truth, figures_of_trials))

    def measure(self, trials: int, say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
        """Measure and print the table; return its rows, and a line for each breach of a bound."""
        trials = min(self.times * trials, self.most_trials or self.times * trials)
        rows = [self.row(world, trials) for world in self.worlds]
        say(f"\n{self.title.format(trials=trials)}\n")
        for line in _lines(rows, self.formats):
            say(line)
        return rows, self.breaches(rows, trials)

    def breaches(self, rows: Sequence[Row], trials: int) -> list[str]:
        """Return one line for each figure that does not lie within its bounds. A figure that no
        trial gave is not checked."""
        out = []
        for row in rows:
            for name, bound in self.wanted(row.truth).items():
                values = known([row.figures[part] for part in name.split("+")])
                share = row.figures[bound.per] if bound.per else 1.0
                least, most = bound.limits(share * trials)
                if values and not least <= sum(values) <= most:
                    wanted = f"at least {least:.3f}" if math.isinf(most) else f"at most {most:.3f}"
                    if math.isfinite(least) and math.isfinite(most):
                        wanted = f"{least:.3f} to {most:.3f}"
                    value = f"{name.replace('_', ' ')} {sum(values):.3f}"
                    out.append(f"{self.name}: {row.world}: {value}, wanted {wanted}")
        return out


TABLES: dict[str, Table] = {}
"""Tables by name."""


def table(name: str, title: str, **facts: Any) -> Callable[[Callable[[Any, int], Figures]], Table]:
    """Return a decorator that makes a table, with these facts, of its trial."""

    def made(trial: Callable[[Any, int], Figures]) -> Table:
        TABLES[name] = Table(name=name, title=title, trial=trial, **facts)
        return TABLES[name]

    return made


def _lines(rows: Sequence[Row], formats: Mapping[str, str]) -> Iterator[str]:
    names = list(rows[0].figures)
    cells = [["world", *(name.replace("_", " ") for name in names)]]
    cells += [
        [row.world, *(_cell(row.figures[name], formats.get(name)) for name in names)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [True, *(isinstance(rows[0].figures[name], str) for name in names)]
    for line in cells:
        columns = zip(line, widths, left, strict=True)
        yield "  ".join(f"{c:<{w}}" if words else f"{c:>{w}}" for c, w, words in columns).rstrip()


def _cell(value: Any, form: str | None) -> str:
    if value is None:
        return ""
    return format(value, form or (".1%" if isinstance(value, float) else ""))
