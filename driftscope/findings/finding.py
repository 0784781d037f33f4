"""A finding: a fact about a run that an engineer can act on, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from driftscope import vocabulary
from driftscope.analysis.number_words import count
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import FEW_CLUSTERS, LOW_CLUSTERS


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


def judged(
    requests: int,
    interval: Interval | None,
    *,
    above: float | None = None,
    below: float | None = None,
    assumed: Sequence[str] = (),
) -> tuple[Trust, str]:
    """Return the trust in a figure that lies `above` or `below` a threshold, from its 95% interval.

    Low: there is no interval, it is over fewer than LOW_CLUSTERS clusters of requests, or it
    contains the threshold. Medium: it is over fewer than FEW_CLUSTERS, or something had to be
    assumed. High: none of these, so that the interval lies clear of every threshold given.
    """
    worth = requests if interval is None or interval.clusters is None else interval.clusters
    if worth < LOW_CLUSTERS:
        return Trust.LOW, f"only {_number_of(requests, interval)}: an interval cannot be relied on"
    if interval is None:
        return Trust.LOW, (
            f"{count(requests, 'request')}, but no 95% interval, for example because one of them "
            "has most of the rounds"
        )
    clear = (above is None or interval.low > above) and (below is None or interval.high < below)
    if not clear:
        return Trust.LOW, "the 95% interval contains the threshold"
    if worth < FEW_CLUSTERS:
        return Trust.MEDIUM, (
            "the 95% interval lies clear of the threshold, but is over only "
            f"{_number_of(requests, interval)}"
        )
    if assumed:
        return Trust.MEDIUM, f"the 95% interval lies clear of the threshold, but {assumed[0]}"
    return Trust.HIGH, (
        f"the 95% interval, over {count(requests, 'request')}, lies clear of the threshold"
    )


def _number_of(requests: int, interval: Interval | None) -> str:
    """Return in words how many requests an interval is over, and what they are worth."""
    if interval is None or interval.clusters is None or interval.clusters > 0.9 * requests:
        return count(requests, "request")
    return (
        f"{count(requests, 'request')} worth {interval.clusters:.0f} independent "
        f"{'one' if round(interval.clusters) == 1 else 'ones'}"
    )


def ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the interval's ends as evidence for the figure `name`."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}
