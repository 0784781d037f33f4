"""Print the results of overhead.py: ratios by point, throughput, and cost by context."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.engines import median_interval, ratios

Interval = tuple[float, float]
GOALS = {"off": 0.005, "default": 0.005, "every round": 0.01}
"""Setting -> largest share of TPOT that it may cost, at every point."""


def points(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield two lines per point: TPOT and throughput, as ratios to an engine without driftscope."""
    for record in sorted(records, key=lambda r: (r["concurrency"], r["context"])):
        head = f"x{record['concurrency']:<3} context {record['context']:7}"
        absent = statistics.median(record["tpot_s"]["absent"])
        yield f"{head}  TPOT   {absent * 1000:9.3f} ms  {_cells(record, 'tpot_s')}"
        # The first results do not include throughput.
        if "tokens_per_s" in record:
            absent = statistics.median(record["tokens_per_s"]["absent"])
            yield f"{'':{len(head)}}  tokens {absent:8.0f} /s  {_cells(record, 'tokens_per_s')}"


def over_goal(records: list[dict[str, Any]]) -> list[str]:
    """Return the settings and points whose median interval lies entirely above the allowed cost."""
    found = []
    for record in records:
        for name, goal in GOALS.items():
            low, _ = median_interval(ratios(record, name))
            if low > 1 + goal:
                found.append(f"{name} at {record['concurrency']} x {record['context']}")
    return found


def by_context(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, by concurrency and setting, the addition to TPOT at the smallest and largest context.

    `growth` is "flat" if the two intervals overlap.
    """
    for concurrency in sorted({r["concurrency"] for r in records}):
        same = sorted(
            (r for r in records if r["concurrency"] == concurrency), key=lambda r: r["context"]
        )
        if len(same) < 2:
            continue
        for name in GOALS:
            (low, low_at), (high, high_at) = (_added(one, name) for one in (same[0], same[-1]))
            growth = _growth(low_at, high_at)
            yield {
                "concurrency": concurrency,
                "setting": name,
                "contexts": (same[0]["context"], same[-1]["context"]),
                "added_s": (low, high),
                "added_interval_s": (low_at, high_at),
                "growth": growth,
            }


def context_lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line per row of `by_context`."""
    for row in by_context(records):
        cells = [
            f"{added * 1e6:+.0f} us ({low * 1e6:+.0f} to {high * 1e6:+.0f}) at {context}"
            for context, added, (low, high) in zip(
                row["contexts"], row["added_s"], row["added_interval_s"], strict=True
            )
        ]
        yield f"x{row['concurrency']:<3} {row['setting']:12} {row['growth']}: {', '.join(cells)}"


def _cells(record: dict[str, Any], figure: str) -> str:
    cells = []
    for name in record[figure]:
        if name == "absent" or not (found := ratios(record, name, figure)):
            continue
        cells.append(f"{name} {statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f})")
    return "  ".join(cells)


def _growth(at_least: Interval, at_most: Interval) -> str:
    """Return the growth from the smallest context to the largest: "grows", "falls" or "flat"."""
    if at_most[0] > at_least[1]:
        return "grows"
    return "falls" if at_most[1] < at_least[0] else "flat"


def _added(record: dict[str, Any], name: str) -> tuple[float, Interval]:
    """Return the time that a setting adds to TPOT, in seconds, paired by repeat: median and its
    interval."""
    pairs = zip(record["tpot_s"][name], record["tpot_s"]["absent"], strict=False)
    added = [a - b for a, b in pairs]
    return statistics.median(added), median_interval(added)
