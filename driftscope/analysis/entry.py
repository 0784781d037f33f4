"""An entry of the catalogue: what a finding means, when it is made, and on what grounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftscope.analysis.case import Case
from driftscope.analysis.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that a rule compares with, and where it comes from."""

    name: str
    """As the constant is called in the rule's module."""
    value: float
    means: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a trace must hold for a rule to say anything."""

    words: str
    met: Callable[[Case], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of finding."""

    id: str
    title: str
    meaning: str
    """One or two plain sentences."""
    thresholds: tuple[Threshold, ...]
    need: Need
    rule: Callable[[Case], Finding | None]
    """The finding about a run; None where there is none."""


ALWAYS = Need(words="nothing beyond verified rounds", met=lambda case: True)  # noqa: ARG005
