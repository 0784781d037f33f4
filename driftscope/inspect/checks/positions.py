"""Checks a drafter's rotary positions, its longest context and its window against the target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level

_USUAL_THETA = 10000.0
_TRAINED = "positions must turn as they did in training; trainers copy the target's"


def check_rope(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield differences of base and scaling of the rotary positions."""
    if inspected.target is None:
        return
    own, targets = inspected.drafter.fields, inspected.target.fields
    if rope_theta(own) != rope_theta(targets):
        yield CheckResult(
            id="rope_theta_differs",
            level=Level.WARNING,
            title="rope_theta is not the target's",
            expected=f'"rope_theta": {rope_theta(targets):g}',
            rule=_TRAINED,
            there=f"{rope_theta(own):g}" if _has_theta(own) else f"absent: {_USUAL_THETA:g}",
            change=f'"rope_theta": {rope_theta(targets):g}, if it was trained so',
            certainty=Certainty.POSSIBLE,
        )
    if _scaling(own) != _scaling(targets):
        yield CheckResult(
            id="rope_scaling_differs",
            level=Level.WARNING,
            title="the scaling of rotary positions is not the target's",
            expected=f"{_scaling(targets) or 'none'}",
            rule=_TRAINED,
            there=f"{_scaling(own) or 'none'}",
            change='"rope_scaling": as in the target\'s config, if it was trained so',
            certainty=Certainty.POSSIBLE,
        )


def check_context(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a shorter longest context, and a window that the target does not have."""
    if inspected.target is None:
        return
    own, targets = inspected.drafter.fields, inspected.target.fields
    ours, theirs = (each.get("max_position_embeddings") for each in (own, targets))
    if isinstance(ours, int) and isinstance(theirs, int) and ours < theirs:
        yield CheckResult(
            id="context_shorter",
            level=Level.WARNING,
            title="the drafter ends before the target's longest context",
            expected=f"{theirs} positions, or --max-model-len {ours}",
            rule="vLLM drafts nothing past the drafter's length (vllm#34734, #58080)",
            there=f'"max_position_embeddings": {ours}',
            change=f'"max_position_embeddings": {theirs}, if it was trained so far',
            certainty=Certainty.LIKELY,
        )
    window = own.get("sliding_window") if own.get("use_sliding_window", True) else None
    if window and window != targets.get("sliding_window"):
        yield CheckResult(
            id="own_window",
            level=Level.NOTE,
            title="the drafter has a sliding window of its own",
            expected="an engine that applies it",
            rule="speculators#684: engines that ignored it lost acceptance with long contexts",
            there=f'"sliding_window": {window}',
        )


def _rope(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotary settings, which transformers 5 keeps in rope_parameters."""
    settings = fields.get("rope_parameters") or fields.get("rope_scaling")
    return settings if isinstance(settings, dict) else {}


def _has_theta(fields: Mapping[str, Any]) -> bool:
    return "rope_theta" in fields or "rope_theta" in _rope(fields)


def rope_theta(fields: Mapping[str, Any]) -> float:
    """Return the base of the rotary positions of a config."""
    value = _rope(fields).get("rope_theta", fields.get("rope_theta"))
    return float(value) if isinstance(value, int | float) else _USUAL_THETA


def _scaling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling without the base; empty for plain positions."""
    rope = dict(_rope(fields))
    rope.pop("rope_theta", None)
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    return {} if kind == "default" else {"rope_type": kind, **rope}
