"""What a run's rounds come to by circumstance: findings about circumstances rest on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.interval import Interval

QUARTERS = 4
"""Parts of a run in time. Requests go to the part that they begin in, so that none is in two."""
LOOP_ROUNDS = 20
"""Rounds in a row, each accepted whole, that end a request and are called a loop: at a conditional
acceptance of 0.95 and K = 4 a run of 20 has a chance of 0.95^80 = 1.7 %, at 0.9 of 0.02 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some of a run's rounds."""

    name: str
    requests: int
    rounds: int
    mean_length: float
    """Acceptance length to compare with that of other groups of the run: in a run of several K,
    what the group's own mix of K adds or takes is taken out (indirect standardisation)."""
    mean_length_interval: Interval | None
    """None with fewer than two requests."""
    marginal: tuple[float, ...]
    marginal_interval: tuple[Interval | None, ...] | None
    served_length: float | None = None
    """Acceptance length as served; `mean_length` in a run of one K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The rounds of one run by circumstance; a group without a round is left out."""

    context: tuple[Group, ...] = ()
    """By length of the context, each range twice as long as the one before, shortest first."""
    batch: tuple[Group, ...] = ()
    """By requests in the step, in the same ranges, smallest first."""
    temperature: tuple[Group, ...] = ()
    """By the request's sampling temperature, coldest first; without those it is not known of."""
    finish: tuple[Group, ...] = ()
    """By finish reason."""
    label: tuple[Group, ...] = ()
    time: tuple[Group, ...] = ()
    """Quarters of the run's duration, first to last."""
    execution: tuple[Group, ...] = ()
    """Recorded rounds by how the drafter ran; empty where all ran alike."""
    structured: tuple[Group, ...] = ()
    """Requests that lost a draft to a grammar, then the others; empty where none did."""
    duration_s: float = 0.0
    failed_share: float = 0.0
    """Decode steps that should have drafted and did not, of all."""
    failed_share_interval: Interval | None = None
    boundary_share: float = 0.0
    """Of the decode steps of requests that lost a draft to a grammar, those that did."""
    boundary_share_interval: Interval | None = None
    looping: int = 0
    """Finished requests whose last LOOP_ROUNDS rounds were all accepted whole."""
    long_enough: int = 0
    """Finished requests with that many rounds."""
    self_last_interval: Interval | None = None
    """Of the mass on the chain itself at depth K."""
    sink_last_interval: Interval | None = None
    aux_ratio: float | None = None
    """Largest over smallest RMS of the captured target layers as the fc reads them."""
    aux_ratio_interval: Interval | None = None
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Share of the rounds in each quarter, by label."""
    context_within_label: Contrast | None = None
    """Long contexts beside short ones under the same labels; None where no label has both."""
    labels_within_context: tuple[Contrast, ...] = ()
    """Labels, two by two, in the same ranges of context lengths; without those that share none."""
    contexts_of_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ranges of context lengths in which each label has enough requests, shortest first."""


NO_GROUPS = Groups()
"""Of a summary that was not made of a trace."""
