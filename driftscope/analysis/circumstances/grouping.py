"""Grouping of a run's rounds by circumstance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.circumstances.groups import QUARTERS, Group, Groups
from driftscope.analysis.circumstances.loops import Loops
from driftscope.analysis.circumstances.named_group import group_of
from driftscope.analysis.circumstances.separation import range_name, within_strata
from driftscope.analysis.circumstances.text_kinds import text_groups
from driftscope.analysis.figures.chain_sums import Chains
from driftscope.analysis.figures.round_sums import Counts, Rounds
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.views import REQUEST
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.statistics.clusters import rate_over_clusters
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals, rate_intervals
from driftscope.analysis.statistics.intervals.interval import Interval

MAX_GROUPS = 16
"""Largest number of temperatures that get a group, counted from the lowest."""


def groups_of(
    run: Sums,
    *,
    by_batch: pa.Table,
    by_execution: pa.Table | None,
    by_text: pa.Table | None,
    loops: Loops,
) -> Groups:
    """Return the groups of a run; the tables come from the passes of the same names."""
    rounds = run.rounds
    quarter = _quarters(run)
    labels = np.array([str(label) for label in run.requests.labels])[rounds.request]
    known = run.requests.finished[rounds.request]
    labelled = rounds.where(known)
    reasons = np.array([str(reason) for reason in run.requests.finish_reason])[rounds.request]
    steps, touched = rounds.rounds + run.undrafted, run.structured > 0
    failed = _share(run.undrafted - run.deliberate, steps, rounds)
    boundary = _share(run.structured[touched], steps[touched], rounds.where(touched))
    there = rounds.rounds > 0
    begin, end = run.first_s[there], run.last_s[there]
    return Groups(
        context=tuple(_by_power(run, run.in_context, " tokens")),
        batch=tuple(_by_power(run, by_batch)),
        temperature=tuple(_by_temperature(run)),
        finish=tuple(group for group in _by_value(rounds, reasons) if group.name),
        label=tuple(_by_value(labelled, labels[known])),
        time=tuple(_by_value(rounds, quarter)),
        execution=_by_execution(run, by_execution),
        structured=_by_structure(run),
        duration_s=float(end.max() - begin.min()) if there.any() else 0.0,
        failed_share=failed[0],
        failed_share_interval=failed[1],
        boundary_share=boundary[0],
        boundary_share_interval=boundary[1],
        looping=loops.looping,
        long_enough=loops.long_enough,
        loops_by_chance=loops.by_chance,
        shares=_shares(labelled, labels[known], quarter[known]),
        **within_strata(run),
        **text_groups(run, by_text),
        **_of_chains(run),  # last, because the sums of chains may still be queried
    )


def _by_value(rounds: Rounds, value: NDArray[np.str_]) -> Iterator[Group]:
    for each in np.unique(value[rounds.rounds > 0]).tolist():
        yield group_of(each, rounds.where(value == each))


def _by_power(run: Sums, table: pa.Table, unit: str = "") -> Iterator[Group]:
    """Yield groups by ranges, each twice as wide as the one before."""
    buckets = _sorted(table, "bucket")
    rounds, power = run.rounds_of(buckets, run.requests.codes(buckets)), whole(buckets, "bucket")
    for each in np.unique(power[rounds.rounds > 0]).tolist():
        yield group_of(f"{range_name(each)}{unit}", rounds.where(power == each))


def _by_temperature(run: Sums) -> Iterator[Group]:
    rounds = run.rounds
    degrees = run.requests.temperature[rounds.request]
    for each in np.unique(degrees[np.isfinite(degrees) & (rounds.rounds > 0)])[:MAX_GROUPS]:
        yield group_of(f"{each:g}", rounds.where(degrees == each))


def _quarters(run: Sums) -> NDArray[np.str_]:
    """Return the quarter of the run of each row of rounds, [rows], named so that the names sort by
    time."""
    begin, there = run.first_s, run.rounds.rounds > 0
    first, last = begin[there].min(initial=np.inf), begin[there].max(initial=-np.inf)
    lasted = max(float(last - first), np.finfo(np.float64).tiny)
    part = np.clip((begin - first) / lasted * QUARTERS, 0, QUARTERS - 1).astype(int)
    names = np.array([f"quarter {n + 1}" for n in range(QUARTERS)])
    return np.asarray(names[part])


def _shares(
    rounds: Rounds, labels: NDArray[np.str_], quarter: NDArray[np.str_]
) -> dict[str, tuple[float, ...]]:
    there = rounds.rounds > 0
    parts, names = np.unique(quarter[there]), np.unique(labels[there]).tolist()
    whole_of = {part: rounds.rounds[quarter == part].sum() for part in parts}
    return {
        label: tuple(
            float(rounds.rounds[(quarter == part) & (labels == label)].sum() / whole_of[part])
            for part in parts
        )
        for label in names
    }


_Share = tuple[float, Interval | None]


def _of_chains(run: Sums) -> dict[str, Any]:
    """Return the fields of `Groups` that are measured in recorded chains."""
    aux = _aux_ratio(run.chains)
    return {
        "self_last_interval": _last_interval(run.chains, "self_mass"),
        "sink_last_interval": _last_interval(run.chains, "sink_mass"),
        "aux_ratio": None if aux is None else aux[0],
        "aux_ratio_interval": None if aux is None else aux[1],
    }


def _last_interval(chains: Chains, name: str) -> Interval | None:
    """Return the interval of a mass at depth K, averaged over layers and chains."""
    mean = chains.over_layers(name)
    by_depth = None if mean is None else rate_intervals(mean.ratio())
    return by_depth[-1] if by_depth else None


def _share(some: Counts, steps: Counts, rounds: Rounds) -> tuple[float, Interval | None]:
    """Return a share of the steps, [rows] like `rounds`, and its interval."""
    return rate_over_clusters(some, steps, rounds.cluster, rounds.crossed)


def _aux_ratio(chains: Chains) -> _Share | None:
    """Return the largest over the smallest RMS of the captured layers, after the norm before the fc
    if there is one, otherwise as captured, with its interval."""
    mean = chains.means.get("aux_norm_rms", chains.means.get("aux_rms"))
    if mean is None or mean.top.shape[1] < 2:
        return None
    rms = mean.all()
    if not np.isfinite(rms).all() or rms.min() <= 0:
        return None
    most, least = int(rms.argmax()), int(rms.argmin())
    # Both are measured in the same chains, so their weights cancel.
    one = replace(mean, top=mean.top[:, [most]], bottom=mean.top[:, [least]])
    spread = intervals(one.ratio())
    return float(rms[most] / rms[least]), spread[0] if spread else None


def _by_execution(run: Sums, table: pa.Table | None) -> tuple[Group, ...]:
    if table is None:
        return ()
    clusters = table.sort_by([(name, "ascending") for name in ("execution", "cluster")])
    rounds = run.rounds_of(clusters, whole(clusters, "cluster"))
    ran = np.asarray(clusters.column("execution").to_pylist(), dtype=np.str_)
    there = sorted(set(ran) & set(run.shape.executions))
    return tuple(group_of(each, rounds.where(ran == each)) for each in there)


def _sorted(table: pa.Table, bucket: str) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in (bucket, *REQUEST)])


def _by_structure(run: Sums) -> tuple[Group, ...]:
    if not run.structured.any():
        return ()
    touched = np.zeros(len(run.requests), dtype=np.bool_)
    touched[run.rounds.request[run.structured > 0]] = True
    mine = touched[run.rounds.request]
    both = (("that lost drafts to a grammar", mine), ("the others", ~mine))
    parts = [(name, run.rounds.where(some)) for name, some in both]
    return tuple(group_of(name, rounds) for name, rounds in parts if len(rounds))
