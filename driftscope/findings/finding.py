"""A conclusion about a run, in one form: a finding, an answer to a standing question, a note.

A `Finding` with a severity is what a rule of the catalogue found; gates fail on it. One without is
an answer to a question that is put to every run, or, if it `affects` a section of the report, a
note on the data. First screen, cards, terminal, Markdown, JSON and gates render the same list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from driftscope import vocabulary
from driftscope.analysis.number_words import count, listed
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import FEW_CLUSTERS, LOW_CLUSTERS


class Topic(StrEnum):
    """Question that a finding belongs to, in the order of the first screen."""

    GROUND = "ground"
    PAYS = "pays"
    ACCEPTANCE = "acceptance"
    WHERE = "where"
    INSIDE = "inside"
    DO = "do"

    @property
    def words(self) -> str:
        """Name on the first screen."""
        return _TOPICS[self]


_TOPICS = {
    Topic.GROUND: "Data",
    Topic.PAYS: "Does it pay",
    Topic.ACCEPTANCE: "Acceptance",
    Topic.WHERE: "Where it is lost",
    Topic.INSIDE: "Inside the drafter",
    Topic.DO: "What to do",
}
"""Name of each topic on the first screen."""


class Answer(StrEnum):
    """Answer to a question that is put so that yes is the good answer; worst first."""

    NO = "no"
    CANNOT_TELL = "cannot tell"
    YES = "yes"


class Severity(StrEnum):
    """Importance of a finding, worst first."""

    HIGH = vocabulary.HIGH
    MEDIUM = vocabulary.MEDIUM
    INFO = vocabulary.INFO
    GOOD = vocabulary.GOOD


URGENT = (Severity.HIGH, Severity.MEDIUM)
"""Severities of findings that ask for an action, worst first."""


class Trust(StrEnum):
    """Certainty of a finding, highest first."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    def at_most(self, most: Trust) -> Trust:
        """Return this trust, or `most` if that is less."""
        return max(self, most, key=list(Trust).index)


class Headline(IntEnum):
    """Place of a finding in the choice of the headline; the first one carries the message."""

    TOO_LITTLE_DATA = 0
    NOTHING_ACCEPTED = 1
    MEASURED_LOSS = 2
    """Slower than without speculation, which was measured, too."""
    MEASURED = 3
    """Other answers by a run without speculation."""
    FASTER = 4
    """Faster than the run that it is compared with."""
    COSTS_TIME = 5
    WORSE = 6
    PAYS = 7
    NO_WORSE = 8
    LENGTH = 9
    NEVER = 10


Number = float | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A possible cause of a finding."""

    cause: str
    check: str
    """Command or config field that confirms or excludes it."""
    observed: str = ""
    """Evidence of the run itself; empty if nothing recorded bears on it."""
    supported: bool = False
    """Whether the evidence supports the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One conclusion about a run, or about a run compared with another."""

    id: str = ""
    """Name of its rule, which fills it in; a rule makes at most one finding per run."""
    topic: Topic = Topic.GROUND
    severity: Severity | None = None
    """None for an answer to a standing question and for a note on the data."""
    runs: tuple[str, ...] = ()
    """Labels of the runs that the finding is about."""
    title: str = ""
    """Title without a run's name or number, or the question that is answered."""
    answer: Answer | None = None
    """Answer to the topic's question; None if the finding is a figure or leaves it open."""
    statement: str = ""
    """Statement about this run, with numbers, without the run's label and without a full stop."""
    estimate: float | None = None
    """Figure that the answer rests on."""
    interval: Interval | None = None
    """95% interval of `estimate`; None if there is none."""
    evidence: Mapping[str, Number] = field(default_factory=dict)
    """Numbers by name; keys that end in `_low` and `_high` are the ends of a 95% interval."""
    confidence: Trust = Trust.MEDIUM
    because: str = ""
    """Reason for the confidence."""
    advice: str = ""
    """Recommended action, or what to record so that the question can be answered."""
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
    reference: str = ""
    """Label of the run that this one is compared with; empty if there is none."""
    affects: str = ""
    """Section of the report beside which a note on the data is shown: "run" (all of it),
    "acceptance", "speed", "senders" or "masses"; empty for findings and answers."""
    headline: Headline = Headline.NEVER

    @property
    def asks(self) -> bool:
        """Whether it asks for an action and is certain enough to."""
        return self.severity in URGENT and self.confidence is not Trust.LOW

    @property
    def short_advice(self) -> str:
        """The first two sentences of the advice: the first one may only name the subject."""
        return f"{'. '.join(self.advice.split('. ')[:2]).rstrip('.')}." if self.advice else ""

    @property
    def line(self) -> str:
        """The runs and the statement, without a full stop."""
        return f"{listed(self.runs)}: {self.statement}"

    @property
    def titled(self) -> str:
        """Title and statement, without a full stop."""
        return f"{capital(self.title)}: {self.statement}" if self.statement else self.title

    def sentence(self, several: bool) -> str:
        """Return the statement as a sentence; the runs are named if there are `several`."""
        return f"{self.line if several else capital(self.statement)}."


def note(
    message: str, *runs: str, name: str, affects: str, answer: Answer | None = None
) -> Finding:
    """Return a note on the data: a reason to trust some of the figures less."""
    return Finding(id=name, runs=runs, statement=message, affects=affects, answer=answer)


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


def figure(name: str, value: Number, interval: Interval | None) -> dict[str, Number]:
    """Return a figure and the ends of its 95% interval as evidence."""
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
