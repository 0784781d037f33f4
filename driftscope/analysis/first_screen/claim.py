"""A claim: the answer to one question about a run, with its figure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from driftscope.analysis.statistics.intervals.interval import Interval


class Topic(StrEnum):
    """Subject of a claim, in the order of the first screen."""

    DATA = "data"
    SPEED = "speed"
    ACCEPTANCE = "acceptance"
    LOSSES = "losses"
    INSIDE = "inside"


TITLES = {
    Topic.DATA: "Data",
    Topic.SPEED: "Does it pay",
    Topic.ACCEPTANCE: "Acceptance",
    Topic.LOSSES: "Where it is lost",
    Topic.INSIDE: "Inside the drafter",
}
"""Name of each topic on the first screen."""


class Answer(StrEnum):
    """Answer to a question that is put so that yes is the good answer."""

    YES = "yes"
    NO = "no"
    CANNOT_TELL = "cannot tell"
    FIGURE = "figure"
    """Nothing was asked: the claim is a measured figure without a judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim about one run, or about a run compared with another."""

    topic: Topic
    run: str
    """Label of the run that the claim is about."""
    question: str
    answer: Answer
    sentence: str
    """Claim in words, without the run's label and without a full stop."""
    estimate: float | None = None
    interval: Interval | None = None
    """95% interval of `estimate`; None if there is none."""
    record: str = ""
    """Recording to make so that the question can be answered; empty if it is answered."""
    reference: str = ""
    """Label of the run that this one is compared with; empty if there is none."""

    def text(self, several: bool) -> str:
        """Return the claim as a sentence; the run is named if there are `several`."""
        return f"{self.run}: {self.sentence}." if several else f"{capital(self.sentence)}."


def capital(text: str) -> str:
    """Return `text` with a capital first letter."""
    return f"{text[:1].upper()}{text[1:]}"
