"""A run cut by workload label."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis import measure
from driftscope.analysis.chains import Chains
from driftscope.analysis.requests import Requests
from driftscope.analysis.rounds import Rounds
from driftscope.analysis.summary import Segment
from driftscope.metrics.attention import over_layers
from driftscope.metrics.chains import by_depth
from driftscope.metrics.hidden import growth
from driftscope.metrics.latency import mean_s


def segments_of(requests: Requests, rounds: Rounds, chains: Chains, k: int) -> tuple[Segment, ...]:
    """One segment per label, names sorted."""
    labels = sorted(set(requests.labels.tolist()))
    return tuple(
        _segment(label, requests, rounds, chains, k, requests.labels == label) for label in labels
    )


def _segment(
    label: str,
    requests: Requests,
    rounds: Rounds,
    chains: Chains,
    k: int,
    mine: NDArray[np.bool_],
) -> Segment:
    rounds, chains = rounds.of(mine), chains.of(mine)
    accepted = measure.acceptance(rounds, k) if len(rounds) else None
    fed, own = chains.by_depth.get("fed_rms"), chains.masses.get("self_mass")
    if not len(chains):
        fed = own = None
    return Segment(
        label=label,
        requests=int(mine.sum()),
        rounds=len(rounds),
        mean_length=accepted.mean_length if accepted else None,
        reach=accepted.marginal[-1] if accepted else None,
        growth=None if fed is None else growth(by_depth(fed, chains.weight)),
        self_mass=None if own is None else by_depth(over_layers(own), chains.weight)[-1],
        ttft_s=mean_s(requests.ttft_s[mine]),
        tpot_s=mean_s(requests.tpot_s[mine]),
    )
