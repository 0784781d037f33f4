"""Figures of one result file, in driftscope's conventions.

A length counts the target's own token of each round, so that a round of which nothing is accepted
yields 1. Rates are shares from 0 to 1; marginal rates are over all rounds, depth 1 first. None
means that the file does not hold a quantity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from driftscope.analysis.statistics.intervals import Interval
from driftscope.ingest.histogram import RequestCounts

OFF_BY = 0.02
"""Difference of two lengths above which they contradict each other: files round to two digits."""
THIS_RUN, SINCE_START, LAST_INTERVAL = "this run", "since the server's start", "last log interval"
"""Periods that figures cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one run, or of one part of it that the file names."""

    part: str = ""
    """Name of the part, such as a benchmark or a category; empty for the whole file."""
    period: str = THIS_RUN
    k: int | None = None
    """Draft tokens per round as configured."""
    requests: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    """Draft tokens that were verified."""
    accepted: int | None = None
    """Draft tokens that were accepted, without the target's own."""
    length: float | None = None
    """Acceptance length, over rounds."""
    length_interval: Interval | None = None
    """95% interval over requests; None without figures of single requests."""
    length_by_request: float | None = None
    """Mean of the requests' acceptance lengths."""
    marginal: tuple[float, ...] | None = None
    """Share of the rounds accepted at least up to each depth."""
    ttft_s: float | None = None
    """Mean time to the first token."""
    tpot_s: float | None = None
    """Mean time per output token after the first."""
    output_per_s: float | None = None
    """Output tokens per second, of all requests together."""
    single: tuple[RequestCounts, ...] = field(default=(), repr=False)
    """Counts of single requests; () if the file has sums only."""
    assumptions: tuple[str, ...] = ()
    """Assumptions and conversions of the reader."""
    contradictions: tuple[str, ...] = ()
    """Figures of the file that do not fit together."""

    @property
    def token_rate(self) -> float | None:
        """Accepted tokens as a share of the drafted ones."""
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted

    @property
    def is_empty(self) -> bool:
        """Whether the file says nothing of acceptance or times."""
        held = (self.length, self.length_by_request, self.marginal, self.ttft_s, self.tpot_s)
        return all(each is None for each in held)


def completed(figures: Figures) -> Figures:
    """Return the figures with the length that counts give, and with what contradicts it."""
    counted = None
    if figures.rounds and figures.accepted is not None:
        counted = 1.0 + figures.accepted / figures.rounds
    length = figures.length if counted is None else counted
    if length is None and figures.marginal is not None:
        length = 1.0 + sum(figures.marginal)
    found = tuple(_contradictions(figures, length))
    return replace(figures, length=length, contradictions=(*figures.contradictions, *found))


def _contradictions(figures: Figures, length: float | None) -> Iterator[str]:
    """Yield where two figures of the file say different things; the identity is length = 1 + sum of
    marginal rates."""
    given = figures.length
    if given is not None and length is not None and abs(given - length) > OFF_BY:
        yield (
            f"the file's acceptance length is {given:.2f}, its counts give {length:.2f}: "
            f"{_definition(given, length)}"
        )
    if figures.marginal is not None and length is not None:
        implied = 1.0 + sum(figures.marginal)
        if abs(implied - length) > OFF_BY:
            yield (
                f"its rates by position give a length of {implied:.2f}, not {length:.2f}: "
                "these are rates of another kind, or of fewer positions"
            )
    if figures.marginal is not None and not _falls(figures.marginal):
        yield "its rates by position rise with depth, which shares of all rounds cannot do"


def _definition(given: float, counted: float) -> str:
    if abs(given + 1.0 - counted) <= OFF_BY:
        return "it does not count the target's own token"
    return "these figures use another definition"


def _falls(rates: Sequence[float]) -> bool:
    return all(a >= b - 1e-9 for a, b in pairwise(rates))
