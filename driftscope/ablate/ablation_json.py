"""An ablation as a JSON document."""

from __future__ import annotations

from typing import Any

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.decomposition import Decomposition, Part
from driftscope.ablate.effect import Effect
from driftscope.ablate.vocabulary_coverage import RegionCoverage
from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.json_document import ABLATION, text
from driftscope.inspect.inspection_json import acceptance_content


def to_json(result: Ablation) -> str:
    """Return everything as text, newline at the end."""
    return text(
        ABLATION,
        {
            "drafter": result.drafter,
            "target": result.target,
            "k": result.k,
            "prompts": result.prompts,
            "positions": result.positions,
            "lacking_tokens": result.vocabulary.lacking,
            "lacking_by_region": [_region(each) for each in result.vocabulary.by_region],
            "effects": [_effect(each) for each in result.effects],
            "decomposition": _decomposition(result.decomposition),
            "not_applicable": dict(result.not_applicable),
        },
    )


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "id": effect.intervention.id,
        "changes": effect.intervention.changes,
        "words": effect.words,
        "paired_by": effect.paired_by.value,
        "prompts": effect.prompts,
        "acceptance": acceptance_content(effect.acceptance),
        "agreement": effect.agreement,
        "conditional": effect.conditional,
        "figures": effect.figures,
        "difference": effect.difference,
        "difference_interval": _ends(effect.interval),
    }


def _region(coverage: RegionCoverage) -> dict[str, Any]:
    return {
        "region": coverage.region,
        "tokens": coverage.tokens,
        "lacking": coverage.lacking,
        "interval": _ends(coverage.interval),
    }


def _decomposition(parts: Decomposition | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    named = ("loss", "tokens", "states", "rest")
    return {
        "first": parts.first,
        "last": parts.last,
        **{name: _part(getattr(parts, name)) for name in named},
    }


def _part(part: Part) -> dict[str, Any]:
    return {"value": part.value, "interval": _ends(part.interval), "orders": part.orders}


def _ends(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
