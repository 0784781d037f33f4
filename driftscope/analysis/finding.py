"""A finding: something about a run that an engineer can act on, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, worst first."""

    HIGH = "high"
    MEDIUM = "medium"
    INFO = "info"
    GOOD = "good"


Number = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`id` names the rule; the same rule may speak about several runs, one finding each."""

    id: str
    severity: Severity
    runs: tuple[str, ...]
    """Labels of the runs that it is about."""
    title: str
    """What was found, without a run's name or number; the same for every finding of this id."""
    statement: str
    """The same about this run, with numbers."""
    evidence: Mapping[str, Number] = field(default_factory=dict)
    advice: str
    """What to do."""
