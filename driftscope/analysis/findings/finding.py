"""A finding: a fact about a run that an engineer can act on, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from driftscope import vocabulary


class Severity(StrEnum):
    """Importance of a finding, worst first."""

    HIGH = vocabulary.HIGH
    MEDIUM = vocabulary.MEDIUM
    INFO = vocabulary.INFO
    GOOD = vocabulary.GOOD


class Trust(StrEnum):
    """Certainty of a finding, highest first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


Number = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible cause of a finding."""

    cause: str
    check: str
    """Command or config field that confirms or excludes it."""
    seen: str = ""
    """Evidence of the run itself; empty if nothing recorded bears on it."""
    supported: bool = False
    """Whether the evidence supports the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `id` names the rule; a rule makes at most one finding per run."""

    id: str
    severity: Severity
    runs: tuple[str, ...]
    """Labels of the runs that the finding is about."""
    title: str
    """Title without a run's name or number; equal for all findings with this id."""
    statement: str
    """Statement about this run, with numbers."""
    evidence: Mapping[str, Number] = field(default_factory=dict)
    """Numbers by name; keys that end in `_low` and `_high` are the ends of a 95% interval."""
    confidence: Trust = Trust.MEDIUM
    because: str = ""
    """Reason for the confidence."""
    advice: str
    """Recommended action."""
    assumed: tuple[str, ...] = ()
    """Assumptions that the run cannot confirm."""
    causes: tuple[Suspect, ...] = ()
    """Possible causes: those that the run supports first, then by how often they occur."""
    ruled_out: tuple[Suspect, ...] = ()
    """Causes that were checked and ruled out."""
    option: str | None = None
    """vLLM option to paste, if there is one."""
    cost_tps: float | None = None
    """Cost in output tokens per second while the engine is busy, by the cost model; None if
    unknown."""
