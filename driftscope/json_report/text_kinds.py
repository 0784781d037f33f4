"""Acceptance by kind of text, as plain values of the JSON report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.analysis.circumstances import Group, Groups
from driftscope.analysis.statistics.strata import Contrast
from driftscope.json_report.interval_ends import ends


def text_to_dict(groups: Groups) -> dict[str, Any] | None:
    """Return the groups by kind of text; None if regions were not recorded."""
    if not groups.region:
        return None
    kept = {each.second: each for each in groups.regions_within_request}
    return {
        "regions": _by_name(groups.region, kept),
        "copied": _by_name(groups.copied, {}),
        "boundary": _contrast(groups.boundary_within_request),
    }


def _by_name(groups: Sequence[Group], kept: dict[str, Contrast]) -> dict[str, Any]:
    whole = sum(group.rounds for group in groups)
    return {
        group.name: {
            "requests": group.requests,
            "rounds": group.rounds,
            "share_of_rounds": group.rounds / whole,
            "mean_length": group.mean_length,
            "mean_length_interval": ends(group.mean_length_interval),
            "within_request": _contrast(kept.get(group.name)),
        }
        for group in groups
    }


def _contrast(contrast: Contrast | None) -> dict[str, Any] | None:
    if contrast is None:
        return None
    return {
        "requests": contrast.requests,
        "kept": contrast.kept,
        "kept_interval": ends(contrast.kept_interval),
        "p": contrast.p,
    }
