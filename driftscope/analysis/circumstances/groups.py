"""Figures of a run's rounds by circumstance, the basis of findings about circumstances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.intervals.interval import Interval

QUARTERS = 4
"""Number of parts of a run in time. A request belongs to the part that it begins in, so that none
is in two."""
LOOP_ROUNDS = 20
"""Number of consecutive rounds, each accepted whole, at the end of a request that are called a
loop, if there are more such requests than chance gives: at K = 1 and an acceptance of 0.95 a
sequence of 20 has a probability of 36 %, at K = 4 of 1.7 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of a run's rounds."""

    name: str
    requests: int
    rounds: int
    mean_length: float
    """Acceptance length to compare with that of other groups of the run: in a run of several K, the
    effect of the group's own mix of K is removed (indirect standardisation)."""
    mean_length_interval: Interval | None
    """95% interval; None with fewer than two requests."""
    marginal: tuple[float, ...]
    marginal_interval: tuple[Interval | None, ...] | None
    served_length: float | None = None
    """Acceptance length as served; equal to `mean_length` in a run of one K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of one run's rounds by circumstance; a group without a round is left out."""

    context: tuple[Group, ...] = ()
    """Groups by length of the context, each range twice as long as the one before, shortest
    first."""
    batch: tuple[Group, ...] = ()
    """Groups by requests in the step, in ranges of the same kind, smallest first."""
    temperature: tuple[Group, ...] = ()
    """Groups by the request's sampling temperature, lowest first; requests without a known one are
    left out."""
    finish: tuple[Group, ...] = ()
    """Groups by finish reason."""
    label: tuple[Group, ...] = ()
    time: tuple[Group, ...] = ()
    """Groups by quarter of the run's duration, first to last."""
    region: tuple[Group, ...] = ()
    """Groups by kind of the text that a round drafts, in the order of `Region.ALL`; empty if
    regions were not recorded."""
    copied: tuple[Group, ...] = ()
    """Groups by whether that text repeats an earlier passage; empty as `region`."""
    regions_within_request: tuple[Contrast, ...] = ()
    """Each region compared with the other text of the same answers."""
    boundary_within_request: Contrast | None = None
    """The first tokens of blocks compared with the rest of the same region and request."""
    execution: tuple[Group, ...] = ()
    """Recorded rounds by execution of the drafter; empty if all ran in the same way."""
    structured: tuple[Group, ...] = ()
    """Requests that lost a draft to a grammar, then the other requests; empty if no request lost
    one."""
    duration_s: float = 0.0
    failed_share: float = 0.0
    """Decode steps that should have drafted and did not, as a share of all decode steps."""
    failed_share_interval: Interval | None = None
    boundary_share: float = 0.0
    """Steps that lost their draft to a grammar, as a share of the decode steps of requests with
    such a step."""
    boundary_share_interval: Interval | None = None
    looping: int = 0
    """Number of finished requests whose last LOOP_ROUNDS rounds were all accepted whole."""
    long_enough: int = 0
    """Number of finished requests with at least LOOP_ROUNDS rounds."""
    loops_by_chance: float = 0.0
    """Number of requests that would end so by chance, see `loops.Loops.by_chance`."""
    self_last_interval: Interval | None = None
    """Interval of the mass on the chain itself at depth K."""
    sink_last_interval: Interval | None = None
    aux_ratio: float | None = None
    """Largest over smallest RMS of the captured target layers as the fc reads them."""
    aux_ratio_interval: Interval | None = None
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Share of each quarter's rounds, by label."""
    context_within_label: Contrast | None = None
    """Long contexts compared with short ones under the same labels; None if no label has both."""
    labels_within_context: tuple[Contrast, ...] = ()
    """Pairs of labels compared in the same ranges of context lengths; pairs without a common range
    are left out."""
    contexts_of_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ranges of context lengths in which each label has enough requests, shortest first."""


NO_GROUPS = Groups()
"""Groups of a summary that was not made from a trace."""
