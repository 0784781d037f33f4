"""Attention drift of a run as plain values of the JSON report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.analysis.statistics.drift import AttentionDrift, Estimate
from driftscope.json_report.interval_ends import ends


def drift_to_dict(drift: AttentionDrift | None) -> dict[str, Any] | None:
    """Return the drift; a key that ends in `_interval` holds the 95% interval of the key before
    it."""
    if drift is None:
        return None
    by_distance = drift.distances
    return {
        "answer": drift.answer,
        "source": drift.source,
        "clusters": drift.clusters,
        "chains": drift.chains,
        "from_depth": drift.from_depth,
        **_estimate("shift", drift.shift),
        **_estimate("first_step", drift.first_step),
        **_estimate("trend", drift.trend),
        **_estimate("sink_kept", drift.sink_kept),
        **_by_depth("near_shift", drift.near_shift),
        "near_shift_p": drift.p,
        **_by_depth("own_excess", drift.own_excess),
        "wanted_clusters": drift.wanted_clusters,
        "distances": None
        if by_distance is None
        else {
            "edges": by_distance.edges,
            "first": by_distance.first,
            "last": by_distance.last,
            "sink": by_distance.sink,
            "variation": by_distance.variation,
        },
    }


def _estimate(name: str, estimate: Estimate | None) -> dict[str, Any]:
    return {
        name: estimate.value if estimate else None,
        f"{name}_interval": ends(estimate.interval) if estimate else None,
    }


def _by_depth(name: str, estimates: Sequence[Estimate | None]) -> dict[str, Any]:
    return {
        name: [each.value if each else None for each in estimates],
        f"{name}_interval": [ends(each.interval) if each else None for each in estimates],
    }
