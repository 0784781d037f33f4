"""Figures of a run, one class per quantity: acceptance, attention, hidden states and others.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN means that it was measured but gave no finite number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.statistics.intervals import Interval

ByDepth = tuple[float, ...]
Spread = tuple[Interval | None, ...]
"""95% interval at each depth; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAtK:
    """Acceptance over the rounds that drafted exactly `k` tokens, including rounds that a length
    limit cut to this many."""

    k: int
    requests: int
    rounds: int
    mean_length: float
    mean_length_interval: Interval | None
    marginal: ByDepth
    """Marginal acceptance by depth, [k]."""
    marginal_interval: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance over all rounds; see `driftscope.metrics.acceptance`."""

    mean_length: float
    """Tokens per round as served."""
    marginal: ByDepth
    """Marginal acceptance by risk sets, like `conditional`; NaN where no round that reached the
    depth drafted it."""
    conditional: tuple[float | None, ...]
    histogram: tuple[int, ...]
    """Number of rounds with exactly 0 .. K tokens accepted."""
    token_rate: float | None
    mean_length_interval: Interval | None = None
    marginal_interval: Spread | None = None
    mean_length_by_request: float | None = None
    mean_length_by_token: float | None = None
    counted: ByDepth = ()
    """Rounds accepted up to the depth over all rounds, as vLLM counts them."""
    died: tuple[int, ...] = ()
    """Number of rounds whose token at the depth was the first to be rejected."""
    by_k: tuple[AcceptanceAtK, ...] = ()
    """Acceptance of the rounds that drafted each K; empty in a run of one K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention over recorded chains, averaged over layers; see `driftscope.metrics.attention`."""

    sink_mass: ByDepth | None
    prompt_mass: ByDepth | None
    generated_mass: ByDepth | None
    self_mass: ByDepth | None
    null_mass: ByDepth | None
    even_sink_mass: float | None
    """Mass that even attention over the verified slots would give the sink set."""
    by_layer: Mapping[str, tuple[ByDepth, ...]]
    """Masses by column name and depth, with one tuple of layers per depth."""
    sink_retention: ByDepth | None = None
    """Sink mass over that at depth 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """RMS over recorded chains; see `driftscope.metrics.hidden`."""

    in_rms: ByDepth | None
    prenorm_rms: ByDepth | None
    postnorm_rms: ByDepth | None
    fed_rms: ByDepth | None
    growth: float | None
    """Fed RMS at depth K over fed RMS at depth 1."""
    growth_interval: Interval | None
    aux_rms: ByDepth | None
    """RMS by captured target layer, not by depth."""
    aux_norm_rms: ByDepth | None
    aux_imbalance: float | None = None
    """RMS of the largest captured layer over that of the smallest, before any norm."""
    aux_norm_imbalance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Verified tokens of one depth and similar confidence."""

    depth: int
    tokens: int
    confidence: float
    """Mean confidence of the tokens."""
    accepted: float
    """Share of the tokens that the target accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Confidence over recorded chains; see `driftscope.metrics.confidence`."""

    top1: ByDepth | None
    entropy: ByDepth | None
    ece: tuple[float | None, ...] | None = None
    """Calibration error by depth; None for a depth that verification never reached."""
    reliability: tuple[ReliabilityBin, ...] = ()
    """Bins by depth and rising confidence; bins without a token are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Means over finished requests."""

    ttft_s: float | None
    tpot_s: float | None
    tpot_s_interval: Interval | None = None
    ttft_s_interval: Interval | None = None
    inter_token_s: float | None = None
    draft_s: float | None = None
    """Median over steps that drafted, like the next field."""
    verify_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Amount recorded, lost rows, and the cost of recording."""

    chains: int
    verified_chains: int
    """Recorded chains whose round is in the run; if not all chains were checked, extrapolated from
    the share."""
    chunked_chains: int
    """Recorded chains for which the drafter's cache is in doubt, see `DraftRow.chunked_prefill`."""
    broken_chains: int
    """Recorded chains with a value that is not a finite number."""
    short_rounds: int
    """Rounds that drafted fewer than K tokens."""
    dropped: int
    """Rows lost, for all causes and in all processes."""
    errors: int
    """Exceptions that hooks caught."""
    overhead_fraction: float | None
    looked_at: int | None = None
    """Number of chains that were compared with their rounds; None if all were."""
    sampling: float | None = None
    """Share of the chains that was recorded, computed from the sampling rates in force; None
    without a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Requests of one workload label, or of another category by which the run was split."""

    label: str
    requests: int
    rounds: int
    mean_length: float | None
    reach: float | None
    """Marginal acceptance at depth K."""
    growth: float | None
    self_mass: float | None
    """Attention mass on the chain itself at depth K."""
    ttft_s: float | None
    tpot_s: float | None
    by: str = "label"
    """Criterion by which the run was split: see `driftscope.analysis.query.row_filters`."""
    mean_length_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSpread:
    """95% intervals of the shares of decode steps, see `driftscope.metrics.fallback`; None with
    fewer than two requests."""

    accepted: Interval | None = None
    """Interval of the share of rounds with at least one accepted token."""
    rejected: Interval | None = None
    undrafted: Interval | None = None
    by_reason: Mapping[str, Interval] = field(default_factory=dict)
    never: Interval | None = None
    """Interval of the share of an outcome that no step had: 0, with its upper bound."""


NO_SPREAD = FallbackSpread()
"""Intervals of a summary that was not made from a trace."""
