"""Changes of acceptance within a server's log, or another series: lines that accept nothing, and
falls over time, with the context or with the load.

A line covers seconds of all running requests, so that it is one observation, however many tokens
were drafted in it: lines differ by what the requests ask for, and neighbours have requests in
common. In a series of counters an interval takes the place of a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Annotated

import numpy as np
from annotated_types import Interval as Within
from numpy.typing import NDArray

from driftscope.analysis.number_words import count as number_of
from driftscope.analysis.statistics.intervals import two_sided
from driftscope.boundary.bounds import MAX_K, Count, Text

DEAD = 1.005
"""Length below which two digits show 1.00."""
DEAD_FIRST = 0.03
"""Share of rounds that accept a first token, or draft tokens accepted in a round where that is not
known, below which a line accepts next to nothing: the largest of broken drafters in public logs,
whose other lines show 1.00. Published drafters: 0.58 or more."""
FEWEST_TOKENS = 60
"""Draft tokens of a line below which chance may accept none: a drafter that works accepts the first
of a round in more than half of the rounds."""
FEWEST_DEAD = 2
"""Lines that accept nothing from which they are a finding."""
FEWEST_LINES = 4
"""Lines from which a change is looked for."""
MANY_LINES = 16
"""Lines from which the first quarter is compared with the last: four lines in each."""
CLEAR_SHARE, CLEAR_PROBABILITY = 0.1, 0.005
"""A difference of two quarters counts if it is 10% of the length, and if a t test of their lines,
less what neighbours have in common, has a probability below 0.5%."""
CLEAR_STEP, CLEAR_TREND, STEP_T = 0.3, 0.25, 6.0
"""With fewer lines a step counts if it is 30% of the length and 6 standard errors at the place
where it is clearest; a trend if halves differ by 25%; either if a t test of it has a probability
below 0.5%. Steady logs
of 6 to 15 lines whose neighbours correlate by 0.7 pass this in 0.3% of cases if lines spread by 10%
of the length, and in 5% if they spread by 16%."""
ROUNDED = 0.0055
"""Largest error of a length printed with two digits, and a little more for its own rounding."""
FEW_RUNNING = 4
"""Requests at once below which another text may explain what a line shows."""
RUNNING, QUEUED, TOKENS = "running requests", "queued requests", "tokens in the KV cache"
DRAFTED = "draft tokens per round"
KV_USAGE, REQUEST_TOKENS = "% of the KV cache in use", "tokens of the request"
TIME, NOTHING = "time", "nothing accepted"
_CONTEXT_OR_LOAD = (TOKENS, KV_USAGE, REQUEST_TOKENS, RUNNING)
LINE, INTERVAL, REQUEST = "line", "interval", "request"
"""Names of one observation."""
MOST_INTERVALS = 120
"""Intervals into which a series is split, to look for changes: two hours of minutes."""
Length = Annotated[float, Within(ge=0.0, le=MAX_K + 1.0)]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAcceptance:
    """Acceptance in one line of a log, which covers one log interval or one request."""

    when: str = ""
    length: float | None = None
    verified: int | None = None
    """Draft tokens that were verified; None if the line does not count them."""
    rates: tuple[float, ...] = ()
    """Rates by position, over all rounds; () if the line has none."""
    quantities: Mapping[str, float] = field(default_factory=dict)
    """Load and context at the time, by name."""

    @classmethod
    def of_request(cls, rounds: int, accepted: int, verified: int | None) -> LineAcceptance:
        """Return a request with `rounds` as an observation; a round verifies a token at least."""
        return cls(length=1.0 + accepted / rounds, verified=verified or rounds)

    @property
    def tells(self) -> bool:
        """Whether the line is of enough draft tokens, if it counts them."""
        return self.verified is None or self.verified >= FEWEST_TOKENS

    @property
    def is_dead(self) -> bool:
        """Whether the line accepts next to nothing."""
        accepted = self.rates[0] if self.rates else (self.length or math.inf) - 1.0
        return accepted < DEAD_FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChange:
    """One change within a log."""

    by: Text
    """TIME, NOTHING for lines that accept nothing, or the quantity with which the length goes."""
    statement: Text
    before: Length | None = None
    """Mean length of the earlier lines, or of those with less of the quantity; of the other lines,
    for lines that accept nothing, and None if there are none."""
    after: Length
    """Mean length of the later lines, of those with more, or of those that accept nothing."""
    lines: Count
    """Number of the lines that `after` covers."""
    of: Count
    """Number of lines of the log."""
    running: Annotated[float, Within(ge=0.0)] | None = None
    """Median of the requests that ran at once; None if the log does not say it."""
    unit: Text = LINE
    """Name of one observation."""

    @property
    def falls(self) -> bool:
        """Whether acceptance is lower later, with more context or load, or gone in some lines."""
        chance = self.by == NOTHING and self.lines < FEWEST_DEAD
        return self.before is not None and self.after < self.before and not chance

    @property
    def lost(self) -> float:
        """Share of the length that is lost; 0 if it does not fall."""
        return 1.0 - self.after / self.before if self.before and self.falls else 0.0


def changes_of(lines: Sequence[LineAcceptance], unit: str = LINE) -> Iterator[LogChange]:
    """Yield the changes within a log, whose lines are in order. Requests have no order:
    of them only those that accept nothing are told."""
    known = [line for line in lines if line.length is not None and line.tells]
    running = [line.quantities[RUNNING] for line in known if RUNNING in line.quantities]
    usual = median(running) if running else None
    dead = [line for line in known if line.is_dead]
    if dead:
        rest = [line for line in known if not line.is_dead]
        yield LogChange(
            by=NOTHING,
            statement=_dead_words(dead, rest, unit),
            before=fmean(_lengths(rest)) if rest else None,
            after=fmean(_lengths(dead)),
            lines=len(dead),
            of=len(known),
            running=usual,
            unit=unit,
        )
    if unit == REQUEST:
        return
    orders = [(TIME, known)]
    for name in _CONTEXT_OR_LOAD:
        naming = [line for line in known if name in line.quantities]
        orders.append((name, sorted(naming, key=lambda line: line.quantities[name])))
    comparable = _alike_of(known)
    for name, ordered in orders:
        if (groups := _contrast(ordered, comparable)) is None:
            continue
        first, last = groups
        before, after = fmean(_lengths(first)), fmean(_lengths(last))
        words = f"{before:.2f} -> {after:.2f} tokens per round "
        if name == TIME:
            words += f"from {_which(first, last, len(known), unit)}{_meanwhile(first, last)}"
        else:
            few, many = (median(line.quantities[name] for line in some) for some in groups)
            if many <= 1.2 * few:
                continue
            words += f"between {unit}s with {few:,.10g} and {unit}s with {many:,.10g} {name}"
        yield LogChange(
            by=name,
            statement=words,
            before=before,
            after=after,
            lines=len(last),
            of=len(known),
            running=usual,
            unit=unit,
        )


def _lengths(lines: Sequence[LineAcceptance]) -> list[float]:
    return [line.length or 1.0 for line in lines]


def _which(
    first: Sequence[LineAcceptance], last: Sequence[LineAcceptance], of: int, unit: str
) -> str:
    """Return the names of the first and the last lines, and when the last ones begin."""
    if len(first) == len(last) == of // 4:
        return f"the first quarter of the {unit}s to the last"
    when = f", which begin at {last[0].when}" if last[0].when else ""
    return f"the first {number_of(len(first), unit)} to the last {len(last):,}{when}"


def _dead_words(dead: Sequence[LineAcceptance], rest: Sequence[LineAcceptance], unit: str) -> str:
    """Return how many lines accepted nothing, when, and what else differs there."""
    lines = number_of(len(dead) + len(rest), unit)
    least, most = min(_lengths(dead)), max(_lengths(dead))
    between = f"{least:.2f} to {most:.2f}" if most - least > DEAD - 1.0 else f"{most:.2f}"
    at = f"{between}: {'nothing' if most < DEAD else 'next to nothing'}"
    counted = all(line.verified is not None or line.rates for line in dead)
    words = f"{len(dead):,} of {lines} at {at} was accepted {'' if counted else 'or drafted '}there"
    times = [line.when for line in dead if line.when]
    if times and rest:
        words += f", from {times[0]} to {times[-1]}" if len(times) > 1 else f", at {times[0]}"
    for name in (RUNNING, QUEUED, TOKENS, KV_USAGE):
        dead_values, other_values = (_values(some, name) for some in (dead, rest))
        if not dead_values or not other_values:
            continue
        here, others = median(dead_values), median(other_values)
        if not 0.67 <= (1 + here) / (1 + others) <= 1.5:
            words += f"; {here:,.10g} {name}, and {others:,.10g} in the other {unit}s"
    return words


def _values(lines: Sequence[LineAcceptance], name: str) -> list[float]:
    return [line.quantities[name] for line in lines if name in line.quantities]


def _meanwhile(first: Sequence[LineAcceptance], last: Sequence[LineAcceptance]) -> str:
    """Return how load and context changed at the same time."""
    changes = []
    for name in (DRAFTED, TOKENS, KV_USAGE, REQUEST_TOKENS, RUNNING, QUEUED):
        groups = [_values(some, name) for some in (first, last)]
        if all(groups):
            few, many = map(median, groups)
            if not 0.83 <= (1 + many) / (1 + few) <= 1.2:
                changes.append(f"{name} went from {few:,.10g} to {many:,.10g}")
    return f", while {' and '.join(changes)}" if changes else ""


Groups = tuple[Sequence[LineAcceptance], Sequence[LineAcceptance]]


def _contrast(ordered: Sequence[LineAcceptance], alike: float) -> Groups | None:
    """Return the first and the last lines of an order if their lengths differ clearly; else None.

    `alike` is the number of lines that count as one.
    """
    lengths = np.array(_lengths(ordered))
    if len(lengths) < FEWEST_LINES:
        return None
    if len(lengths) < MANY_LINES:
        at = _step(lengths) or _trend(lengths)
        return None if at is None else (ordered[:at], ordered[at:])
    quarter = len(lengths) // 4
    a, b = lengths[:quarter], lengths[-quarter:]
    difference, error = abs(float(b.mean() - a.mean())), _error(a, b) * alike**0.5
    probability = float(two_sided(np.array(difference / error), np.array(2.0 * quarter - 2)))
    if probability >= CLEAR_PROBABILITY or difference < CLEAR_SHARE * max(a.mean(), b.mean()):
        return None
    return ordered[:quarter], ordered[-quarter:]


def _error(a: Values, b: Values) -> float:
    """Return the standard error of the difference of two means. Lengths have two digits, so that
    lines which look alike still vary by their rounding."""
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    pooled = max(squares / (len(a) + len(b) - 2), ROUNDED**2)
    return float((pooled * (1 / len(a) + 1 / len(b))) ** 0.5)


def _step(lengths: Values) -> int | None:
    """Return where a step is clearest, at least two lines from both ends; None without one."""
    clearest, place = STEP_T, None
    for at in range(2, len(lengths) - 1):
        a, b = lengths[:at], lengths[at:]
        difference = abs(float(a.mean() - b.mean()))
        clear = difference / _error(a, b)
        if clear > clearest and difference >= CLEAR_STEP * max(a.mean(), b.mean()):
            clearest, place = clear, at
    freedom = len(lengths) - 2.0
    chance = float(two_sided(np.array(clearest), np.array(freedom)))
    return place if chance < CLEAR_PROBABILITY else None


def _trend(lengths: Values) -> int | None:
    """Return the middle if the lengths rise or fall steadily; else None."""
    n, half = len(lengths), len(lengths) // 2
    places, rest = np.arange(n) - (n - 1) / 2, lengths - lengths.mean()
    slope = float((places * rest).sum() / (places**2).sum())
    squares = max(float(((rest - slope * places) ** 2).sum()), n * ROUNDED**2)
    error = (squares / (n - 2) / float((places**2).sum())) ** 0.5
    probability = float(two_sided(np.array(abs(slope) / error), np.array(n - 2.0)))
    a, b = lengths[:half].mean(), lengths[-half:].mean()
    clear = probability < CLEAR_PROBABILITY and abs(a - b) >= CLEAR_TREND * max(a, b)
    return half if clear else None


def _alike_of(lines: Sequence[LineAcceptance]) -> float:
    """Return how many lines in a row count as one, since what runs in one runs in the next: from
    the correlation of neighbours within the first and the last quarter, less its bias (Kendall
    1954)."""
    quarter = len(lines) // 4
    if len(lines) < MANY_LINES:
        return 1.0
    groups = np.array([_lengths(lines[:quarter]), _lengths(lines[-quarter:])])
    rest = groups - groups.mean(axis=1, keepdims=True)
    total, size = float((rest**2).sum()), rest.shape[1]
    noisy = total > rest.size * ROUNDED**2
    correlation = float((rest[:, 1:] * rest[:, :-1]).sum()) / total if noisy else 0.0
    correlation = float(min(max(correlation + (1 + 3 * correlation) / size, 0.0), 0.8))
    return (1.0 + correlation) / (1.0 - correlation)
