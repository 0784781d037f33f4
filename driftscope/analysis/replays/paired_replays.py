"""Comparison of two replays of the same prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from driftscope.analysis.replays.replay_summary import (
    GOOD,
    OUTCOMES,
    ReplaySummary,
    Row,
    load_words,
)
from driftscope.analysis.replays.request_rows import grouped, lengths, tpots
from driftscope.analysis.statistics.paired_ratios import Ratio, paired_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    """Comparison of two replays of the same prompts, in one condition and load."""

    first: str
    other: str
    condition: str
    load: str
    length_ratio: Ratio | None
    """Ratio of the other replay's acceptance length to the first one's."""
    tpot_ratio: Ratio | None
    same_text: tuple[int, int]
    """Number of greedy pairs with identical answers, and of greedy pairs."""
    outcomes: Mapping[str, tuple[int, int, int]]
    """Number of pairs in which only the first was bad, in which only the other was bad, and of all
    pairs, by name in OUTCOMES."""


def versus(first: ReplaySummary, other: ReplaySummary) -> tuple[ReplayComparison, ...]:
    """Compare two replays by condition, where both asked the same prompts."""
    out = []
    mine, theirs = grouped(first.rows), grouped(other.rows)
    for cell in first.cells:
        key = (cell.condition, cell.concurrency, cell.rate)
        a, b = mine.get(key, []), theirs.get(key, [])
        if not {_pair(row) for row in a} & {_pair(row) for row in b}:
            continue
        out.append(
            ReplayComparison(
                first=first.label,
                other=other.label,
                condition=key[0],
                load=load_words(a[0]),
                length_ratio=paired_ratio(lengths(b), lengths(a)),
                tpot_ratio=paired_ratio(tpots(b), tpots(a)),
                same_text=_same_text(a, b),
                outcomes={name: changes for name in OUTCOMES if (changes := _changes(a, b, name))},
            )
        )
    return tuple(out)


def _pair(row: Row) -> tuple[str, int]:
    return row["pair"], row["repeat"]


def _both(a: Iterable[Row], b: Iterable[Row]) -> list[tuple[Row, Row]]:
    mine = {_pair(row): row for row in a}
    return [(mine[_pair(row)], row) for row in b if _pair(row) in mine]


def _same_text(a: Iterable[Row], b: Iterable[Row]) -> tuple[int, int]:
    greedy = [(x, y) for x, y in _both(a, b) if x["temperature"] == 0 and y["temperature"] == 0]
    return sum(x["digest"] == y["digest"] for x, y in greedy), len(greedy)


def _changes(a: Iterable[Row], b: Iterable[Row], name: str) -> tuple[int, int, int] | None:
    both = [(x, y) for x, y in _both(a, b) if x[name] is not None and y[name] is not None]
    bad = [(x[name] != (name in GOOD), y[name] != (name in GOOD)) for x, y in both]
    if not bad:
        return None
    return sum(x and not y for x, y in bad), sum(y and not x for x, y in bad), len(bad)
