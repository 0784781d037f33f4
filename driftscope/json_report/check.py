"""The judgements of a gate's rules as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

from driftscope.analysis.gate import Judgement
from driftscope.json_report.document import CHECK, VERSIONS, layout, plain


def to_json(judgements: Sequence[Judgement], exit_code: int) -> str:
    """Return every judgement as text, newline at the end."""
    return layout(
        {
            "kind": CHECK,
            "schema_version": VERSIONS[CHECK],
            "exit_code": exit_code,
            "rules": [_plain(judgement) for judgement in judgements],
        }
    )


def _plain(judgement: Judgement) -> dict[str, Any]:
    values = {path: plain(v) if is_dataclass(v) else v for path, v in judgement.values.items()}
    return {
        "rule": judgement.rule.text,
        "name": judgement.rule.name,
        "run": judgement.run,
        "outcome": judgement.outcome.value,
        "values": values,
        "because": judgement.because or None,
    }
