"""Summary of one run: the figures that findings, reports and gates read.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN means that it was measured but gave no finite number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.circumstances.groups import NO_GROUPS, Groups
from driftscope.analysis.closeup.closeup import CloseUp
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
from driftscope.analysis.figures.side import Side
from driftscope.analysis.figures.step_cells import StepCell
from driftscope.metrics.fallback import Fallback
from driftscope.metrics.throughput import StepCost
from driftscope.trace.format.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of one run."""

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
    """Number of tokens of the longest chain: draft tokens per round in a run of one K. In a summary
    of an older driftscope it is taken from the manifest."""
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
    closeup: CloseUp | None = None
    """Single requests, moments and durations, for the report."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """Intervals by the quantity measured in chains, see
    `driftscope.analysis.figures.measure.spread`; also of the `conditional` rate and of the rounds
    that `died` at each depth."""
    fallback_spread: FallbackSpread = NO_SPREAD
    side: Side | None = None
    """Rounds by request, with which two runs are compared. None in a report of an older version,
    and in a summary that was not made from a trace."""
    changes: Changes | None = None
    """Change points of acceptance; None if there are too few requests to find one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", self.k or self.manifest.k)
        object.__setattr__(self, "ks", self.ks or (self.k,))
        object.__setattr__(self, "depths", self.depths or self.k)

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1
