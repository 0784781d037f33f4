"""What one run comes down to: the figures that findings, reports and gates read.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN that it was measured and no finite number came out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.closeup.closeup import CloseUp
from driftscope.analysis.figures.change_points import Changes
from driftscope.analysis.figures.groups import NO_GROUPS, Groups
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
    """One run."""

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
    """What the reader found missing or lost."""
    k: int = 0
    """Tokens of the longest chain: draft tokens per round in a run of one K. As the manifest says,
    in a summary of an older driftscope."""
    ks: tuple[int, ...] = ()
    """Chain lengths that were asked for, ascending: several where K follows the batch size or
    changed while the server ran."""
    depths: int = 0
    """Depths of the figures of recorded chains, see `Shape.depths`; `k` in a run of one K."""
    effective_k: float | None = None
    """Tokens drafted per decode step, steps without a draft included."""
    cells: tuple[StepCell, ...] = ()
    """Step times by K and batch size."""
    groups: Groups = NO_GROUPS
    """Acceptance by circumstance."""
    closeup: CloseUp | None = None
    """Single requests, moments and durations, for the report."""
    spread: Mapping[str, Spread] = field(default_factory=dict)
    """By what was measured in chains, see `driftscope.analysis.figures.measure.spread`; also of the
    `conditional` rate and of the rounds that `died` at each depth."""
    fallback_spread: FallbackSpread = NO_SPREAD
    side: Side | None = None
    """The rounds by request: what two runs are compared by. None in a report of an older version,
    and of a summary that was not made of a trace."""
    changes: Changes | None = None
    """Points in time at which acceptance changed; None with too few requests to find one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", self.k or self.manifest.k)
        object.__setattr__(self, "ks", self.ks or (self.k,))
        object.__setattr__(self, "depths", self.depths or self.k)

    @property
    def mixed(self) -> bool:
        """Whether it has chains of several K."""
        return len(self.ks) > 1
