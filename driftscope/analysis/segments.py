"""A run cut by workload label, or by anything else that rows can be told apart by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis import filters, measure, passes
from driftscope.analysis.collect import Sums, collect
from driftscope.analysis.columns import floats
from driftscope.analysis.summary import Segment
from driftscope.analysis.tables import Tables, narrow, queried
from driftscope.errors import NoDataError
from driftscope.metrics.hidden import growth
from driftscope.metrics.latency import mean_s


def segments_of(run: Sums) -> tuple[Segment, ...]:
    """One segment per label, names sorted."""
    labels = sorted(set(run.requests.labels.tolist()))
    return tuple(_segment(label, run, run.requests.labels == label) for label in labels)


def segments_by(tables: Tables, by: str) -> tuple[Segment, ...]:
    """A segment per bucket of `by`, a key of `filters.BY`, each from the rows that are in it.

    Raises UsageError for another key. The views of `tables` are narrowed on the way and restored.
    """
    begin_s = float(floats(tables.engine.rows(passes.duration()), "first_s")[0])
    bucket = filters.bucket_of(by, begin_s)
    columns = queried("verify").names
    rows = filters.wide("verify", columns)
    tables.engine.define("buckets", f"SELECT DISTINCT {bucket} AS bucket FROM ({rows}) t")
    found = tables.engine.rows(passes.buckets()).column("bucket").to_pylist()
    segments = []
    for each in sorted(name for name in found if name is not None):
        text = "'" + each.replace("'", "''") + "'"
        try:
            run = collect(narrow(tables, [f"{bucket} = {text}"]))
        except NoDataError:
            continue
        everyone = np.ones(len(run.requests), dtype=np.bool_)
        segments.append(replace(_segment(filters.name_of(by, each), run, everyone), by=by))
    narrow(tables, [])
    return tuple(segments)


def _segment(label: str, run: Sums, mine: NDArray[np.bool_]) -> Segment:
    rounds, chains = run.rounds.of(mine), run.chains.of(run.strata(mine))
    accepted = measure.acceptance(rounds, run.shape.k, spread=True) if len(rounds) else None
    fed, own = chains.means.get("fed_rms"), chains.over_layers("self_mass")
    if not len(chains):
        fed = own = None
    return Segment(
        label=label,
        requests=int(mine.sum()),
        rounds=len(rounds),
        mean_length=accepted.mean_length if accepted else None,
        reach=accepted.marginal[-1] if accepted else None,
        growth=None if fed is None else growth(fed.all().tolist()),
        self_mass=None if own is None else float(own.all()[-1]),
        ttft_s=mean_s(run.requests.ttft_s[mine]),
        tpot_s=mean_s(run.requests.tpot_s[mine]),
        mean_length_interval=accepted.mean_length_interval if accepted else None,
    )
