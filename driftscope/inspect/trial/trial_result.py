"""Results of a trial: what is accepted as it is, and with each repair. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from driftscope.analysis.statistics.intervals import Interval
from driftscope.inspect.inside.inside import Inside
from driftscope.inspect.trial.acceptance import Acceptance, Gain

T = TypeVar("T")


class TrialListener:
    """Listener to a trial's progress; this one ignores everything."""

    def measured(self, as_is: Acceptance, repairs: int) -> None:
        """Hear what is accepted as it is, and how many repairs are tried next."""

    def each(self, items: Iterable[T], _what: str, _total: int) -> Iterable[T]:
        """Return `items`, of which there are `_total`, to be taken one by one."""
        return items


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a drafter that may fix it.

    `fields` are those of config.json that change; `weights` says that tensors change too.
    `mistake` names what was wrong if the repair helps.
    """

    id: str
    change: str
    mistake: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllPositions:
    """Gains over all positions of the answers, paired by prompt.

    Both tell smaller differences from chance than the rounds of a server do, of which there are
    fewer.
    """

    accepted: Gain
    """Accepted tokens of a draft, with its 95% interval, not corrected."""
    probability: Gain
    """Probability of the target's tokens (`Drafted.probability`), corrected for the number of
    repairs tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A repair, and what is accepted with it."""

    repair: Change
    acceptance: Acceptance
    gain: Gain
    prompts: int
    """Number of prompts; of repairs that were soon given up, fewer than in the whole trial."""
    all_positions: AllPositions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplicable:
    """A hypothesis that cannot be tried, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRendering:
    """Another way of writing the prompts, and what is accepted with it."""

    rendering: Change
    acceptance: Acceptance
    gain: Gain
    """Paired by prompt, corrected for the number of renderings tried."""
    prompts: int
    surer: float
    """Mean log-probability per token that the target gives to its own answers, minus that with the
    prompts as they are: above 0, the answers are easier to predict."""
    surer_interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Results of a trial."""

    prompts: int
    k: int
    as_is: Acceptance
    figures: Mapping[str, tuple[float, ...]]
    """Means by depth of the figures that `drafting.FIGURES` names."""
    inside: Inside
    tried: tuple[Tried, ...]
    """All repairs, the best first."""
    renderings: tuple[TriedRendering, ...] = ()
    """Other ways of writing the prompts, the best first."""
    not_applicable: tuple[NotApplicable, ...] = ()
    """Hypotheses that could not be tried, or were not before Ctrl-C."""
    stopped: bool = False
    """Whether Ctrl-C ended the trial; the results are those before it."""


STOPPED = "stopped by Ctrl-C"
"""Reason for which a hypothesis was not tried."""


def by_reason(left_out: Iterable[NotApplicable]) -> dict[str, list[str]]:
    """Return the ids of hypotheses that were not tried, by the reason."""
    found: dict[str, list[str]] = {}
    for each in left_out:
        found.setdefault(each.reason, []).append(each.id)
    return found


def stopped_before(changes: Iterable[Change]) -> Iterator[NotApplicable]:
    """Return the changes that Ctrl-C left out."""
    return (NotApplicable(id=each.id, reason=STOPPED) for each in changes)
