"""An inspection as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from driftscope.analysis.statistics.intervals import Interval
from driftscope.boundary.json_document import INSPECTION, text
from driftscope.inspect.inside import Inside
from driftscope.inspect.inspection import Inspection
from driftscope.inspect.trial.result import Acceptance, AllPositions, Trial, TriedRendering


def to_json(inspection: Inspection, exit_code: int) -> str:
    """Return everything as text, newline at the end."""
    return text(INSPECTION, _content(inspection, exit_code))


def _content(inspection: Inspection, exit_code: int) -> dict[str, Any]:
    sizes = inspection.sizes
    return {
        "drafter": inspection.drafter,
        "target": inspection.target,
        "format": inspection.format,
        "checked": inspection.checked,
        "checks": inspection.checks,
        "exit_code": exit_code,
        "stopped": inspection.stopped,
        "results": [asdict(result) for result in inspection.results],
        "sizes": {**asdict(sizes), "share": sizes.share},
        "trial": _trial(inspection.trial) if inspection.trial else None,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "prompts": trial.prompts,
        "k": trial.k,
        "acceptance": acceptance_content(trial.as_is),
        "figures": trial.figures,
        "inside": _inside(trial.inside),
        "tried": [
            {
                "id": each.repair.id,
                "change": each.repair.change,
                "fields": each.repair.fields,
                "weights": each.repair.weights,
                "prompts": each.prompts,
                "acceptance": acceptance_content(each.acceptance),
                "difference": each.gain.difference,
                "difference_interval": _ends(each.gain.interval),
                "p": each.gain.p,
                "all_positions": _all_positions(each.all_positions),
            }
            for each in trial.tried
        ],
        "renderings": [_rendering(each) for each in trial.renderings],
        "not_applicable": [asdict(each) for each in trial.not_applicable],
    }


def _inside(inside: Inside) -> dict[str, Any]:
    right = inside.confidence.right
    return {
        "attention_drift": inside.attention,
        "growth": inside.growth.value if inside.growth else None,
        "growth_interval": _ends(inside.growth.interval) if inside.growth else None,
        "growth_answer": inside.grows if inside.growth else None,
        "confidence": inside.confidence.sure,
        "right": [each.value if each else None for each in right],
        "right_interval": [_ends(each.interval) if each else None for each in right],
    }


def _all_positions(each: AllPositions | None) -> dict[str, Any] | None:
    return (
        None
        if each is None
        else {
            "accepted_difference": each.accepted.difference,
            "accepted_interval": _ends(each.accepted.interval),
            "probability_difference": each.probability.difference,
            "probability_interval": _ends(each.probability.interval),
            "probability_p": each.probability.p,
        }
    )


def _rendering(each: TriedRendering) -> dict[str, Any]:
    return {
        "id": each.rendering.id,
        "change": each.rendering.change,
        "prompts": each.prompts,
        "acceptance": acceptance_content(each.acceptance),
        "difference": each.gain.difference,
        "difference_interval": _ends(each.gain.interval),
        "p": each.gain.p,
        "target_surer": each.surer,
        "target_surer_interval": _ends(each.surer_interval),
    }


def acceptance_content(acceptance: Acceptance) -> dict[str, Any]:
    """Return the acceptance of a trial, ready for JSON."""
    return {
        "mean_length": acceptance.length,
        "mean_length_interval": _ends(acceptance.length_interval),
        "marginal": acceptance.marginal,
        "marginal_interval": [_ends(each) for each in acceptance.marginal_interval],
        "rounds": acceptance.rounds,
    }


def _ends(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
