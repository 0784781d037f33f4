"""Definition of a metric in words: the only source for help texts, tooltips and docs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric. `name` is its path in the JSON report, such as "acceptance.marginal"."""

    name: str
    title: str
    """Name of the metric in a heading or a table."""
    meaning: str
    """Meaning in one or two plain sentences."""
    unit: str
    """Unit in UCUM: "1" for a ratio, "s", "{token}"."""
    range: str
    source: str
    """Origin of the definition."""
