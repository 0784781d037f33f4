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


class Trust(StrEnum):
    """How sure a finding is, surest first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


Number = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible cause of a finding."""

    cause: str
    check: str
    """The command or the config field that tells."""
    seen: str = ""
    """Evidence of the run itself; empty where nothing recorded tells."""
    supported: bool = False
    """Whether that speaks for it."""


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
    """Keys that end in `_low` and `_high` are the ends of a 95% interval."""
    confidence: Trust = Trust.MEDIUM
    because: str = ""
    """Why it is as sure as that."""
    advice: str
    """What to do."""
    assumed: tuple[str, ...] = ()
    """What it rests on that the run cannot tell."""
    causes: tuple[Suspect, ...] = ()
    """Causes that may be behind it: those that the run supports first, then by how often they
    happen."""
    ruled_out: tuple[Suspect, ...] = ()
    """Causes that were looked at and ruled out."""
    option: str | None = None
    """An option of vLLM's to paste, where there is one."""
    cost_tps: float | None = None
    """Output tokens per second that it costs the engine while it is busy, by the cost model; None
    where that is not known."""
