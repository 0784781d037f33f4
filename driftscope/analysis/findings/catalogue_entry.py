"""An entry of the catalogue: what a finding means, when it is made, and on what grounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.findings.finding_inputs import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that a rule compares with, and where it comes from."""

    name: str
    """As the constant is called in the rule's module."""
    value: float
    means: str
    source: str


About = TypeVar("About")
"""What a rule looks at: the Case of a run, or of a replay."""


# Not slotted: Python 3.11 cannot make a frozen, slotted instance of a class with its argument said.
@dataclass(frozen=True, kw_only=True)
class Need(Generic[About]):
    """What a trace must hold for a rule to say anything."""

    words: str
    met: Callable[[About], bool]


@dataclass(frozen=True, kw_only=True)
class Entry(Generic[About]):
    """One kind of finding."""

    id: str
    title: str
    meaning: str
    """One or two plain sentences."""
    thresholds: tuple[Threshold, ...]
    need: Need[About]
    rule: Callable[[About], Finding | None]
    """The finding about a run; None where there is none."""


ALWAYS: Need[Case] = Need(words="nothing beyond verified rounds", met=lambda case: True)  # noqa: ARG005
