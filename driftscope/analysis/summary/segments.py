"""Segments of a run, split by workload label or by another property of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chains import Chains, chains_in_buckets, denominator, numerator
from driftscope.analysis.figures.results import Segment, acceptance_of
from driftscope.analysis.figures.rounds import Rounds, duration, rounds_in_buckets
from driftscope.analysis.figures.run_sums import Sums, collect
from driftscope.analysis.query.column_arrays import floats, sums
from driftscope.analysis.query.record_views import PART, REQUEST, cut, narrow, open_run, ranks_of
from driftscope.analysis.query.row_filters import BY_K, RANK, Bucket, bucket_of, name_of
from driftscope.metrics.hidden import growth
from driftscope.metrics.latency import mean_s

BY_LABEL = "label"
"""Way to split a run if no other is asked for."""


def segments_of(run: Sums) -> tuple[Segment, ...]:
    """Return one segment per label, sorted by name. Requests that have not finished have no label
    that is known."""
    labels = sorted(set(run.requests.labels[run.requests.finished].tolist()))
    return tuple(_of_label(label, run) for label in labels)


def segments_by(run: Sums, by: str) -> tuple[Segment, ...]:
    """Return one segment per bucket of `by`, see `driftscope.analysis.query.row_filters`, made
    from the decode steps and chains in the bucket.

    Raises UsageError for an unknown way to split.
    """
    begin_s = float(floats(run.tables.engine.rows(duration()), "first_s")[0])
    bucket = bucket_of(by, begin_s)
    if by == RANK:
        return tuple(_by_rank(run))
    round_sums, drift = _rounds_in(run, bucket), _drift_in(run, bucket, by_k=by == BY_K)
    rounds = run.rounds_of(round_sums, run.requests.codes(round_sums))
    names = np.asarray(round_sums.column("bucket").to_pylist(), dtype=np.str_)
    return tuple(
        _segment(
            name_of(by, name), by, run, rounds.where(names == name), *drift.get(name, (None, None))
        )
        for name in np.unique(names).tolist()
    )


def _of_label(label: str, run: Sums) -> Segment:
    mine = run.requests.labels == label
    rounds = run.rounds.of(mine)
    segment = _segment(label, "label", run, rounds, *_drift(run.chains.of(run.strata(mine))))
    return replace(
        segment,
        requests=int(mine.sum()),
        ttft_s=mean_s(run.requests.ttft_s[mine]),
        tpot_s=mean_s(run.requests.tpot_s[mine]),
    )


def _by_rank(run: Sums) -> Iterator[Segment]:
    """Yield one segment per rank: all rounds, with what that rank recorded of their chains. A rank
    records its own attention heads; what does not depend on heads is recorded by the first rank
    only."""
    ranks = ranks_of(run.tables.path)
    for rank in ranks:
        if len(ranks) == 1:
            drift = _drift(run.chains)
        else:
            tables = open_run(run.tables.path, rank=rank)
            with closing(tables.engine):
                drift = _drift(
                    collect(narrow(tables, run.tables.conditions, run.tables.left_out)).chains
                )
        yield _segment(f"rank {rank}", RANK, run, run.rounds, *drift)


def _segment(
    name: str, by: str, run: Sums, rounds: Rounds, grown: float | None, own: float | None
) -> Segment:
    accepted = acceptance_of(rounds, spread=True) if len(rounds) else None
    mine: NDArray[np.int64] = np.unique(rounds.request)
    return Segment(
        label=name,
        by=by,
        requests=len(mine),
        rounds=len(rounds),
        mean_length=accepted.mean_length if accepted else None,
        reach=_finite(accepted.marginal[-1]) if accepted else None,
        growth=grown,
        self_mass=own,
        ttft_s=mean_s(run.requests.ttft_s[mine]),
        tpot_s=mean_s(run.requests.tpot_s[mine]),
        mean_length_interval=accepted.mean_length_interval if accepted else None,
    )


def _finite(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None


_Drift = tuple[float | None, float | None]
"""Growth of the state fed forward, and mass on the chain at the last depth."""


def _drift(chains: Chains) -> _Drift:
    if not len(chains):
        return None, None
    fed, own = chains.means.get("fed_rms"), chains.over_layers("self_mass")
    return (
        None if fed is None else growth(fed.all().tolist()),
        None if own is None else float(own.all()[-1]),
    )


def _rounds_in(run: Sums, bucket: Bucket) -> pa.Table:
    cut(run.tables, "verify", "verify", bucket)
    round_sums = run.tables.engine.rows(rounds_in_buckets(run.shape))
    return round_sums.sort_by([(name, "ascending") for name in ("bucket", *REQUEST)])


def _drift_in(run: Sums, bucket: Bucket, *, by_k: bool) -> dict[str, _Drift]:
    """Return the drift by bucket; `by_k`: to the last depth of the bucket's own chains."""
    if not len(run.chains) + run.shallower.chains:
        return {}
    parts = []
    for derived in run.tables.parts:
        run.tables.use(derived)
        cut(run.tables, PART, "draft", bucket)
        parts.append(run.tables.engine.rows(chains_in_buckets(run.shape, derived, by_k)))
    chain_sums = pa.concat_tables(parts, promote_options="permissive")
    names = np.asarray(chain_sums.column("bucket").to_pylist(), dtype=np.object_)
    out: dict[str, _Drift] = {}
    for name in set(names) - {None}:
        mine = chain_sums.filter(pa.array(names == name))
        first, last, own = (_mean(mine, name) for name in ("fed_rms", "fed_rms_last", SELF_LAST))
        out[name] = (None if last is None else growth([first or math.nan, last]), own)
    return out


def _mean(table: pa.Table, name: str) -> float | None:
    """Return the mean of a column; None if nothing finite was measured."""
    if denominator(name, 0) not in table.column_names:
        return None
    weight = float(sums(table, denominator(name, 0)).sum())
    return float(sums(table, numerator(name, 0)).sum()) / weight if weight else None


SELF_LAST = "self_mass_last"
