"""Reading of replays: a client's trace, or another tool's sums, as a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.analysis.replays.condition_cells import cells_of
from driftscope.analysis.replays.file_totals import FileTotals, totals_of
from driftscope.analysis.replays.replay_summary import Cell, ReplaySummary, Row
from driftscope.analysis.replays.server_requests import joined_with
from driftscope.errors import DamagedTraceError
from driftscope.metrics.latency import mean_s
from driftscope.trace.read.reader import Trace
from driftscope.vocabulary import Ended


def summarise_replay(trace: Trace, label: str, servers: Sequence[Trace] = ()) -> ReplaySummary:
    """Summarise a replay; `servers` are probes' runs, which may contain some of its requests."""
    rows: list[Row] = trace.client.sort_by("order").to_pylist()
    sums = _totals(trace)
    measured = [row for row in rows if not row["warmup"]]
    answered = [row for row in measured if row["ended"] == Ended.ANSWERED]
    joined, answered = joined_with(answered, servers)
    ended: dict[str, int] = {}
    for row in rows:
        ended[row["ended"]] = ended.get(row["ended"], 0) + 1
    outside = [row["outside_s"] for row in answered if row.get("outside_s") is not None]
    return ReplaySummary(
        label=label,
        manifest=trace.manifest,
        planned=len(rows) if rows or not sums else None,
        ended=dict(sorted(ended.items())),
        cells=(
            *cells_of(measured, answered, trace.manifest.workload),
            *(_cell_of_sums(each) for each in sums),
        ),
        joined=joined,
        outside_s=mean_s(outside),
        **_gpus(trace),
        rows=tuple(answered),
        problems=trace.problems,
    )


def _totals(trace: Trace) -> tuple[FileTotals, ...]:
    try:
        return totals_of(trace.manifest.workload)
    except ValueError as error:
        raise DamagedTraceError(
            f"{trace.path}: its manifest holds sums that no driftscope writes ({error}); write the "
            "run again from its file"
        ) from error


def _cell_of_sums(sums: FileTotals) -> Cell:
    """Return the figures that sums support; intervals and comparisons need rows of requests."""
    return Cell(
        condition=sums.condition,
        concurrency=None,
        rate=None,
        requests=sums.requests,
        answered=None,
        ttft_s=sums.ttft_s,
        tpot_s=sums.tpot_s,
        e2e_s=None,
        throughput=sums.throughput,
        rounds=sums.rounds,
        mean_length=sums.mean_length,
        mean_length_interval=sums.mean_length_interval,
        length_ratio=None,
        tpot_ratio=None,
        outcomes={},
        totals=sums,
    )


def _gpus(trace: Trace) -> dict[str, Any]:
    """Return the largest memory and mean power; a sample is one row per GPU, all with the same
    time."""
    used: dict[float, int] = {}
    power: dict[float, float] = {}
    for row in trace.resource.to_pylist():
        when = row["time_s"]
        if row["gpu_used_bytes"] is not None:
            used[when] = used.get(when, 0) + row["gpu_used_bytes"]
        if row["gpu_power_w"] is not None:
            power[when] = power.get(when, 0.0) + row["gpu_power_w"]
    return {
        "gpu_used_bytes": max(used.values(), default=None),
        "gpu_power_w": mean_s(list(power.values())),
    }
