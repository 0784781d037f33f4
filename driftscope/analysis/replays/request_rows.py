"""Rows of requests as the sender has them, grouped and summed by pair of prompts."""

from __future__ import annotations

from collections.abc import Iterable

from driftscope.analysis.replays.replay_summary import Row
from driftscope.analysis.statistics.paired_ratios import Sums

Key = tuple[str, int | None, float | None]
"""Condition, concurrency and rate."""


def grouped(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows by condition and load."""
    out: dict[Key, list[Row]] = {}
    for row in rows:
        out.setdefault((row["condition"], row["concurrency"], row["rate"]), []).append(row)
    return out


def lengths(rows: Iterable[Row]) -> Sums:
    """Return the tokens that the rounds of each pair yielded, and the number of rounds."""
    out: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["accepted"]:
            tokens, rounds = out.get(row["pair"], (0.0, 0.0))
            more = len(row["accepted"])
            out[row["pair"]] = (tokens + sum(row["accepted"]) + more, rounds + more)
    return out


def tpots(rows: Iterable[Row]) -> Sums:
    """Return the sum of times per output token of each pair, and their number."""
    out: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["tpot_s"] is not None:
            total, count = out.get(row["pair"], (0.0, 0.0))
            out[row["pair"]] = (total + row["tpot_s"], count + 1.0)
    return out
