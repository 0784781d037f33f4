"""An entry of the catalogue: the meaning of a finding, its thresholds and its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftscope.analysis.findings.finding import Finding
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.statistics.intervals.interval import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A number that a rule compares with, and its source."""

    name: str
    """Name of the constant in the rule's module."""
    value: float
    means: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """Figure whose side of a bound decides whether a finding is made."""

    value: float
    interval: Interval | None
    """95% interval of `value`; None if there is none."""
    bound: float

    @property
    def is_open(self) -> bool:
        """Whether noise decides: there is no interval, or it contains the bound."""
        return self.interval is None or self.interval.low <= self.bound <= self.interval.high


About = TypeVar("About")
"""Input of a rule: the case of a run, or of a replay."""


# Not slotted: Python 3.11 cannot subscript and call a frozen, slotted generic class.
@dataclass(frozen=True, kw_only=True)
class Need(Generic[About]):
    """Data that a trace must contain for a rule to decide."""

    words: str
    met: Callable[[About], bool]


def no_figure(_: object) -> Deciding | None:
    """Return None: no single figure decides."""
    return None


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
    deciding: Callable[[About], Deciding | None] = no_figure
    """Function that returns the figure that decides, also if there is no finding; None if several
    do, or if it is not known."""


ALWAYS: Need[Case] = Need(words="nothing beyond verified rounds", met=lambda case: True)  # noqa: ARG005
