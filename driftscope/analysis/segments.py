"""A run cut by workload label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis import measure
from driftscope.analysis.collect import Sums
from driftscope.analysis.summary import Segment
from driftscope.metrics.hidden import growth
from driftscope.metrics.latency import mean_s


def segments_of(run: Sums) -> tuple[Segment, ...]:
    """One segment per label, names sorted."""
    labels = sorted(set(run.requests.labels.tolist()))
    return tuple(_segment(label, run, run.requests.labels == label) for label in labels)


def _segment(label: str, run: Sums, mine: NDArray[np.bool_]) -> Segment:
    rounds, chains = run.rounds.of(mine), run.chains.of(run.strata(mine))
    accepted = measure.acceptance(rounds, run.shape.k) if len(rounds) else None
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
    )
