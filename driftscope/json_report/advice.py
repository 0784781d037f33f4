"""The advice on K as a JSON document."""

from __future__ import annotations

from typing import Any

from driftscope.analysis.advice import NO_SPECULATION, Advice, answer
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.causes import none_accepted
from driftscope.json_report.document import ADVICE, VERSIONS, layout, plain

DEAD = "every K costs time and gives nothing"
"""Reason for no speculation where a drafter is dead."""


def to_json(advice: Advice, **more: Any) -> str:
    """Return everything as text, newline at the end; null for figures that are not known, and
    `doubt` says why. `more` are further fields."""
    return _text({**plain(advice), "command": advice.command, "answer": answer(advice), **more})


def dead_to_json(run: RunSummary) -> str:
    """Return the advice on a dead drafter of which too few steps are known for more."""
    return _text(
        {
            "run": run.label,
            "ran_k": run.k,
            "command": NO_SPECULATION,
            "useless": True,
            "why": f"{none_accepted(run)}: {DEAD}",
        }
    )


def _text(content: dict[str, Any]) -> str:
    named = {"kind": ADVICE, "schema_version": VERSIONS[ADVICE], **content}
    return layout(_supported(named))


def _supported(value: Any) -> Any:
    """Return `value` with null for figures whose interval has no support."""
    if isinstance(value, dict):
        if value.keys() == {"value", "interval"} and value["interval"] is None:
            return {"value": None, "interval": None}
        return {key: _supported(item) for key, item in value.items()}
    return [_supported(item) for item in value] if isinstance(value, list | tuple) else value
