"""Summary of one run: the figures that findings, reports and gates read.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN means that it was measured but gave no finite number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.circumstances import NO_GROUPS, Groups
from driftscope.analysis.closeup import CloseUp
from driftscope.analysis.figures.change_points import Changes
from driftscope.analysis.figures.results import (
    NO_SPREAD,
    Acceptance,
    Attention,
    Confidence,
    FallbackSpread,
    Hidden,
    Latency,
    Recording,
    Segment,
    Spread,
)
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.figures.run_sums import Cohort, Slice
from driftscope.analysis.figures.steps import StepCell
from driftscope.analysis.figures.verified_chains import WithinRequest, answers
from driftscope.analysis.statistics.association import Answer
from driftscope.analysis.statistics.drift import AttentionDrift
from driftscope.analysis.summary.independence import Independence
from driftscope.analysis.summary.length_by_k import LengthAtK
from driftscope.boundary.json_document import written_property
from driftscope.metrics.fallback import Fallback
from driftscope.metrics.latency import StepCost
from driftscope.trace.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run, all of which its JSON document has."""

    label: str
    manifest: Manifest
    rounds: int
    requests: int
    acceptance: Acceptance
    attention: Attention
    hidden: Hidden
    confidence: Confidence
    latency: Latency
    fallback: Fallback
    recording: Recording
    cost: StepCost | None
    segments: tuple[Segment, ...]
    problems: tuple[str, ...]
    """Problems that the reader found: missing or lost data."""
    k: int = 0
    """Number of tokens of the longest chain: draft tokens per round in a run of one K."""
    ks: tuple[int, ...] = ()
    """Chain lengths that were asked for, ascending; there are several if K follows the batch size
    or changed while the server ran."""
    depths: int = 0
    """Number of depths of the figures of recorded chains, see `Shape.depths`; `k` in a run of one
    K."""
    effective_k: float | None = None
    """Tokens drafted per decode step, including steps without a draft."""
    cells: tuple[StepCell, ...] = ()
    """Step times by K and batch size."""
    groups: Groups = NO_GROUPS
    """Acceptance by circumstance."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """Intervals by the quantity measured in chains, see
    `driftscope.analysis.figures.results.spread`; also of the `conditional` rate and of the rounds
    that `died` at each depth."""
    fallback_spread: FallbackSpread = NO_SPREAD
    changes: Changes | None = None
    """Change points of acceptance; None if there are too few requests to find one."""
    lengths_by_k: tuple[LengthAtK, ...] = ()
    """Acceptance length for K = 1 .. `k`, from rounds cut anew; () in a run of several K."""
    within_request: tuple[WithinRequest, ...] = ()
    """How acceptance goes with the drafter's internals within requests, by measure."""
    attention_drift: AttentionDrift | None = None
    """Movement of attention over depth, beyond the recency-matched null; None without attention
    masses at two depths."""
    cohort: Cohort | None = None
    """Rounds that the figures leave out; None if they leave out none."""
    slice: Slice | None = None
    """Cut by `--since` or `--where`; None for a whole run."""

    independence: Independence | None = None
    """Which requests count as independent; None in a summary that was not made from a trace."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", self.k or self.manifest.k)
        object.__setattr__(self, "ks", self.ks or (self.k,))
        object.__setattr__(self, "depths", self.depths or self.k)

    @written_property
    def within_request_answers(self) -> dict[str, Answer]:
        """Whether acceptance goes with each measure within requests, by measure."""
        found = answers(self.within_request)
        names = (relation.measure for relation in self.within_request)
        return dict(zip(names, found, strict=True))

    @property
    def seen_whole(self) -> bool:
        """Whether enough requests were recorded whole for means and trends to be told."""
        return self.cohort is None or self.cohort.enough

    @property
    def clusters(self) -> int:
        """Number of independent units that the requests come from: requests, if no more is
        known."""
        return self.requests if self.independence is None else self.independence.clusters

    @property
    def noun(self) -> str:
        """Word for one of `clusters`."""
        known = self.independence
        return known.noun if known is not None and known.repeated else "request"

    @property
    def unseen(self) -> bool:
        """Whether the recording does not show which prompts repeat."""
        known = self.independence
        return known is not None and not known.seen and not known.suspected

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunFigures):
    """Summary of one run: its figures, and what the report and comparisons need in addition."""

    closeup: CloseUp | None = None
    """Single requests, moments and durations, for the report."""
    side: Side | None = None
    """Rounds by request, with which two runs are compared; None in a summary that was not made from
    a trace."""
