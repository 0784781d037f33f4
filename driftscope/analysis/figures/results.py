"""The figures of one quantity of a run: acceptance, attention, hidden states, and the others.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN that it was measured and no finite number came out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.analysis.statistics.interval import Interval

ByDepth = tuple[float, ...]
Spread = tuple[Interval | None, ...]
"""The 95% interval at each depth; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAtK:
    """Over the rounds that drafted exactly `k` tokens. Rounds that a length limit cut to this many
    are among them."""

    k: int
    requests: int
    rounds: int
    mean_length: float
    mean_length_interval: Interval | None
    marginal: ByDepth
    """[k]."""
    marginal_interval: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Over all rounds; see `driftscope.metrics.acceptance`."""

    mean_length: float
    """Tokens per round as served."""
    marginal: ByDepth
    """By risk sets, as `conditional`; NaN where no round that got there drafted the depth."""
    conditional: tuple[float | None, ...]
    histogram: tuple[int, ...]
    """Rounds with exactly 0 .. K tokens accepted."""
    token_rate: float | None
    mean_length_interval: Interval | None = None
    marginal_interval: Spread | None = None
    mean_length_by_request: float | None = None
    mean_length_by_token: float | None = None
    counted: ByDepth = ()
    """Rounds accepted to the depth over all rounds, as vLLM counts them."""
    died: tuple[int, ...] = ()
    """Rounds whose token at the depth was the first to be rejected."""
    by_k: tuple[AcceptanceAtK, ...] = ()
    """Acceptance of the rounds that drafted each K; empty in a run of one K."""

    def __post_init__(self) -> None:
        """A summary of an older driftscope counts as vLLM does, and nothing else."""
        object.__setattr__(self, "counted", self.counted or self.marginal)
        object.__setattr__(self, "died", self.died or self.histogram[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Over recorded chains, layers averaged; see `driftscope.metrics.attention`."""

    sink_mass: ByDepth | None
    prompt_mass: ByDepth | None
    generated_mass: ByDepth | None
    self_mass: ByDepth | None
    null_mass: ByDepth | None
    no_drift_self_mass: ByDepth | None
    """What the chain's own tokens would get without drift."""
    no_drift_kept: ByDepth | None
    """Share of its depth-1 mass that a context class would keep without drift."""
    even_sink_mass: float | None
    """What even attention over the verified slots would give the sink set."""
    by_layer: Mapping[str, tuple[ByDepth, ...]]
    """Masses by column name and depth: one tuple of layers per depth."""
    sink_retention: ByDepth | None = None
    """Sink mass over what it would keep without drift."""
    self_excess: ByDepth | None = None
    """Mass on the chain beyond the no-drift expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """RMS over recorded chains; see `driftscope.metrics.hidden`."""

    in_rms: ByDepth | None
    prenorm_rms: ByDepth | None
    postnorm_rms: ByDepth | None
    fed_rms: ByDepth | None
    growth: float | None
    """Fed RMS at depth K over depth 1."""
    growth_interval: Interval | None
    aux_rms: ByDepth | None
    """By captured target layer, not by depth."""
    aux_norm_rms: ByDepth | None
    aux_imbalance: float | None = None
    """Largest captured layer over the smallest, before any norm."""
    aux_norm_imbalance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Verified tokens of one depth and about one confidence."""

    depth: int
    tokens: int
    confidence: float
    """Their mean."""
    accepted: float
    """Share that the target accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Over recorded chains; see `driftscope.metrics.confidence`."""

    top1: ByDepth | None
    entropy: ByDepth | None
    ece: tuple[float | None, ...] | None = None
    """By depth; None for a depth that verification never reached."""
    reliability: tuple[ReliabilityBin, ...] = ()
    """By depth and rising confidence; bins without a token are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Means over finished requests."""

    ttft_s: float | None
    tpot_s: float | None
    tpot_s_interval: Interval | None = None
    ttft_s_interval: Interval | None = None
    inter_token_s: float | None = None
    draft_s: float | None = None
    """Median of steps that drafted, as is the next."""
    verify_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How much was recorded, what was lost and what it cost."""

    chains: int
    verified_chains: int
    """Recorded chains whose round is in the run; where not all were looked at, as many as their
    share comes to."""
    chunked_chains: int
    """Recorded chains of which the drafter's cache is in doubt, see `DraftRow.chunked_prefill`."""
    broken_chains: int
    """Recorded chains with a value that is no finite number."""
    short_rounds: int
    """Rounds that drafted fewer than K tokens."""
    dropped: int
    """Rows lost, all causes and processes together."""
    errors: int
    """Exceptions that hooks swallowed."""
    overhead_fraction: float | None
    looked_at: int | None = None
    """Chains that were held against their rounds, where that is not all of them."""
    sampling: float | None = None
    """Share of the chains that was recorded, by the rates in force; None without a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The requests of one workload label, or what else the run was cut by."""

    label: str
    requests: int
    rounds: int
    mean_length: float | None
    reach: float | None
    """Marginal acceptance at depth K."""
    growth: float | None
    self_mass: float | None
    """On the chain itself at depth K."""
    ttft_s: float | None
    tpot_s: float | None
    by: str = "label"
    """How the run was cut: see `driftscope.analysis.query.buckets`."""
    mean_length_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSpread:
    """95% intervals of the shares of decode steps, see `driftscope.metrics.fallback`; None with
    fewer than two requests."""

    accepted: Interval | None = None
    """Of rounds that kept at least one drafted token."""
    rejected: Interval | None = None
    undrafted: Interval | None = None
    by_reason: Mapping[str, Interval] = field(default_factory=dict)
    never: Interval | None = None
    """Of what no step became: 0, and what it may be above that."""


NO_SPREAD = FallbackSpread()
"""Of a summary that was not made of a trace."""
