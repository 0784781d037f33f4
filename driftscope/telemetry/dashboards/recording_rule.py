"""One recording rule of Prometheus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One recording rule with its meaning in words."""

    record: str
    expr: str
    meaning: str
    unit: str = "1"
