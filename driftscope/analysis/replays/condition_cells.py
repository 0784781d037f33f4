"""Figures of a replay by condition and load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from driftscope.analysis.replays.replay_summary import OUTCOMES, Cell, Row
from driftscope.analysis.replays.request_rows import Key, grouped, lengths, tpots
from driftscope.analysis.statistics.intervals.cluster_intervals import ratio_intervals
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.paired_ratios import Sums, paired_ratio
from driftscope.metrics.acceptance import mean_length
from driftscope.metrics.latency import mean_s, tokens_per_second


def cells_of(
    measured: Sequence[Row], answered: Sequence[Row], workload: Mapping[str, Any]
) -> tuple[Cell, ...]:
    """Return the cells by load, the baseline first, then the other conditions in the suite's
    order."""
    planned, done = grouped(measured), grouped(answered)
    baseline, listed = str(workload.get("baseline", "")), list(workload.get("conditions", ()))
    place = {name: number for number, name in enumerate(listed)}
    order = sorted(
        planned,
        key=lambda k: (k[1] or 0, k[2] or 0.0, k[0] != baseline, place.get(k[0], 0), k[0]),
    )
    speeds = _throughputs(answered)
    return tuple(
        _cell(
            key,
            len(planned[key]),
            done.get(key, []),
            done.get((baseline, *key[1:]), []) if key[0] != baseline else [],
            speeds.get(key[1:]),
        )
        for key in order
    )


def _cell(
    key: Key, planned: int, rows: Sequence[Row], baseline: Sequence[Row], speed: float | None
) -> Cell:
    yielded = lengths(rows)
    rounds = int(sum(bottom for _, bottom in yielded.values()))
    tokens = sum(top for top, _ in yielded.values())
    return Cell(
        condition=key[0],
        concurrency=key[1],
        rate=key[2],
        requests=planned,
        answered=len(rows),
        ttft_s=_mean(rows, "ttft_s"),
        tpot_s=_mean(rows, "tpot_s"),
        e2e_s=_mean(rows, "e2e_s"),
        throughput=speed,
        rounds=rounds,
        mean_length=mean_length(tokens - rounds, rounds) if rounds else None,
        mean_length_interval=_length_interval(yielded),
        length_ratio=paired_ratio(yielded, lengths(baseline)),
        tpot_ratio=paired_ratio(tpots(rows), tpots(baseline)),
        outcomes={name: counts for name in OUTCOMES if (counts := _counted(rows, name))[1]},
    )


def _throughputs(rows: Sequence[Row]) -> dict[tuple[int | None, float | None], float | None]:
    """Return the throughput by load: conditions run at the same time, so they share it."""
    loads: dict[tuple[int | None, float | None], list[Row]] = {}
    for row in rows:
        loads.setdefault((row["concurrency"], row["rate"]), []).append(row)
    return {load: _throughput(some) for load, some in loads.items()}


def _throughput(rows: Sequence[Row]) -> float | None:
    if any(row["output_tokens"] is None for row in rows):
        return None
    begun = min(row["sent_s"] for row in rows)
    return tokens_per_second(
        sum(row["output_tokens"] for row in rows), max(row["time_s"] for row in rows) - begun
    )


def _length_interval(sums: Sums) -> Interval | None:
    if len(sums) < 2:
        return None
    values = np.array([sums[key] for key in sorted(sums)])
    intervals = ratio_intervals(values[:, :1], values[:, 1:])
    if not intervals or intervals[0] is None:
        return None
    # A round yields at least one token, which an interval over few prompts may not reflect.
    return intervals[0].within(1.0, np.inf)


def _mean(rows: Iterable[Row], name: str) -> float | None:
    return mean_s([row[name] for row in rows if row[name] is not None])


def _counted(rows: Iterable[Row], name: str) -> tuple[int, int]:
    recorded = [row[name] for row in rows if row[name] is not None]
    return sum(recorded), len(recorded)
