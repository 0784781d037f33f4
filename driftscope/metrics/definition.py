"""What a metric is, in words: the one place that help texts, tooltips and docs take them from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric. `name` is its path in the JSON report, such as "acceptance.marginal"."""

    name: str
    title: str
    """How a heading or a table calls it."""
    meaning: str
    """One or two plain sentences."""
    unit: str
    """UCUM: "1" for a ratio, "s", "{token}"."""
    range: str
    source: str
    """Where the definition comes from."""
