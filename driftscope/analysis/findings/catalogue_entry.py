"""An entry of the catalogue: the meaning of a finding, its thresholds and its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.findings.finding_inputs import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that a rule compares with, and its source."""

    name: str
    """Name of the constant in the rule's module."""
    value: float
    means: str
    source: str


About = TypeVar("About")
"""Input of a rule: the case of a run, or of a replay."""


# Not slotted: Python 3.11 cannot subscript and call a frozen, slotted generic class.
@dataclass(frozen=True, kw_only=True)
class Need(Generic[About]):
    """Data that a trace must contain for a rule to decide."""

    words: str
    met: Callable[[About], bool]


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[About]):
    """One kind of finding."""

    id: str
    title: str
    meaning: str
    """Meaning in one or two plain sentences."""
    thresholds: tuple[Threshold, ...]
    need: Need[About]
    rule: Callable[[About], Finding | None]
    """Function that returns the finding about a case; None if there is none."""


ALWAYS: Need[Case] = Need(words="nothing beyond verified rounds", met=lambda case: True)  # noqa: ARG005
