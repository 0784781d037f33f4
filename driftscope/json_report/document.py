"""Writes a JSON document: its kind, its schema version, its numbers and its nulls.

Every document that `--json` prints is made here. Keys are sorted and nothing depends on the clock:
the same runs give the same bytes. null stands where a quantity does not exist or is no finite
number. A new key does not change a document's version; a changed or removed one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from driftscope.boundary import strict_json

REPORT, COMPARISON, CHECK, ADVICE = "report", "comparison", "check", "advice"
PROBE, REPLAY, WATCH = "probe", "replay", "watch"
RUNS, FILES, INSPECTION = "runs", "files", "inspection"
PROMISE, ABLATION, INGESTED = "promise", "ablation", "ingested"
VERSIONS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(
        (
            *(REPORT, COMPARISON, CHECK, ADVICE, PROBE, REPLAY, WATCH, RUNS, FILES),
            *(INSPECTION, PROMISE, ABLATION, INGESTED),
        ),
        1,
    )
)
"""Schema version of each kind of document."""
DIGITS = 9
"""Significant digits: more than the trace's float32 holds, fewer than platforms agree on."""


def text(kind: str, content: Mapping[str, Any]) -> str:
    """Return `content` as a document of this kind, newline at the end."""
    return layout(document(kind, content))


def document(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with its kind and version, its numbers rounded, as plain values."""
    named = {"kind": kind, "schema_version": VERSIONS[kind], **content}
    rounded_content: dict[str, Any] = rounded(named)
    return rounded_content


def layout(content: Any) -> str:
    """Return plain values as text: sorted keys, one space of indent, newline at the end."""
    return strict_json.dumps(content, indent=1, sort_keys=True) + "\n"


def plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as plain values; intervals are their two ends."""
    return asdict(record, dict_factory=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return {name: fields[name] for name in _ENDS} if set(fields) == {*_ENDS, "clusters"} else fields


_ENDS = ("low", "high")


def rounded(value: Any) -> Any:
    """Return `value` with floats rounded to DIGITS, and None for those that are not finite."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(item) for item in value]
    return value
