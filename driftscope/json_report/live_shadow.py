"""Live interventions of a run as plain values of the JSON report."""

from __future__ import annotations

from typing import Any

from driftscope.analysis.summary.shadow_agreement import ShadowAgreement
from driftscope.json_report.document import plain
from driftscope.json_report.interval_ends import ends


def shadow_to_dict(found: ShadowAgreement) -> dict[str, Any]:
    """Return one intervention; a key that ends in `_interval` holds the 95% interval of the key
    before it."""
    return {
        "intervention": found.intervention,
        "chains": found.chains,
        "left_out": found.left_out,
        "clusters": found.clusters,
        "shadow": plain(found.shadow),
        "served": plain(found.served),
        "further": found.further,
        "less_far": found.less_far,
        "difference": found.difference,
        "difference_interval": ends(found.interval),
        "by_depth": found.by_depth,
        "by_depth_interval": [ends(each) for each in found.by_depth_interval],
    }
