"""Histograms of accepted tokens, and figures of requests that have one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import ratio_intervals
from driftscope.boundary.bounds import MAX_K
from driftscope.ingest.fields import BadFigureError, count, numbers

Histogram = tuple[int, ...]
"""Rounds with 0, 1, ... tokens accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Counts of one request."""

    rounds: int
    accepted: int
    drafted: int | None = None
    histogram: Histogram | None = None
    question: str | None = None
    """Identifier of the question, if the file names it: requests of two files with the same one are
    compared in pairs."""
    ttft_s: float | None = None
    tpot_s: float | None = None


def histogram_of(value: object, name: str) -> Histogram | None:
    """Return a histogram from a list, or from an object by number of tokens; None if absent."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return _by_number(value, name)
    found = numbers(value, name)
    if len(found) > MAX_K + 1 or any(each != int(each) for each in found):
        raise BadFigureError(f"{name} is no histogram of rounds by accepted tokens")
    return tuple(int(each) for each in found)


def _by_number(value: Mapping[str, Any], name: str) -> Histogram:
    if not all(key.isascii() and key.isdecimal() and len(key) < 6 for key in value):
        raise BadFigureError(f"{name} has a key that is no number of tokens")
    numbers_of = {int(key): count(value, key) or 0 for key in value}
    most = max(numbers_of, default=0)
    if most > MAX_K:
        raise BadFigureError(f"{name} has a round of {most} accepted tokens")
    return tuple(numbers_of.get(at, 0) for at in range(most + 1))


def accepted_in(histogram: Histogram) -> int:
    """Return the tokens that a histogram's rounds accepted."""
    return sum(tokens * rounds for tokens, rounds in enumerate(histogram))


def together(histograms: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms of different lengths."""
    longest = max(map(len, histograms), default=0)
    return tuple(sum(each[at] for each in histograms if at < len(each)) for at in range(longest))


def marginal_of(histogram: Histogram) -> tuple[float, ...]:
    """Return the share of the rounds that accept at least 1, 2, ... tokens; () without rounds."""
    rounds = sum(histogram)
    if not rounds:
        return ()
    reached = np.cumsum(histogram[::-1])[::-1][1:]
    return tuple((reached / rounds).tolist())


def interval_of(requests: Sequence[RequestCounts]) -> Interval | None:
    """Return the interval of the acceptance length over requests that have a round."""
    there = [each for each in requests if each.rounds]
    if not there:
        return None
    tokens = np.array([[each.rounds + each.accepted] for each in there], float)
    spread = ratio_intervals(tokens, np.array([[each.rounds] for each in there], float))
    return spread[0] if spread else None


def mean_of(requests: Sequence[RequestCounts]) -> float | None:
    """Return the mean of the requests' acceptance lengths."""
    there = [each for each in requests if each.rounds]
    lengths = [1.0 + each.accepted / each.rounds for each in there]
    return sum(lengths) / len(lengths) if lengths else None
