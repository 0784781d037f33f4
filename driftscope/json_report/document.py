"""Writes a JSON document: its kind, its schema version, its numbers and its nulls.

Every document that `--json` prints is made here. Keys are sorted and nothing depends on the clock:
the same runs give the same bytes. null stands where a quantity does not exist or is no finite
number. A new key does not change a document's version; a changed or removed one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from driftscope.boundary import strict_json

REPORT, COMPARISON, CHECK, ADVICE = "report", "comparison", "check", "advice"
VERSIONS: Mapping[str, int] = MappingProxyType({REPORT: 1, COMPARISON: 1, CHECK: 1, ADVICE: 1})
"""Schema version of each kind of document."""
DIGITS = 9
"""Significant digits: more than the trace's float32 holds, fewer than platforms agree on."""


def text(kind: str, content: Mapping[str, Any]) -> str:
    """Return `content` as a document of this kind, newline at the end."""
    return layout(document(kind, content))


def document(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with its kind and version, its numbers rounded, as plain values."""
    named = {"kind": kind, "schema_version": VERSIONS[kind], **content}
    found: dict[str, Any] = rounded(named)
    return found


def layout(content: Any) -> str:
    """Return plain values as text: sorted keys, one space of indent, newline at the end."""
    return strict_json.dumps(content, indent=1, sort_keys=True) + "\n"


def rounded(value: Any) -> Any:
    """Return `value` with floats rounded to DIGITS, and None for those that are not finite."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(item) for item in value]
    return value
