"""The inside of a drafter along its chains: attention, states and confidence by depth.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.figures.attention_drift import (
    AttentionDrift,
    DistanceSums,
    SinkSums,
    drift_by_distance,
    with_sink,
)
from driftscope.analysis.number_words import between, between_percent, percent, times
from driftscope.analysis.query.query_engine import Matrix
from driftscope.analysis.statistics.intervals import Estimate
from driftscope.analysis.statistics.ratio import estimates, rate_intervals, ratio_of
from driftscope.boundary.json_document import written_property
from driftscope.findings.causes import GROWS_ABOVE
from driftscope.findings.rules_attention import STABLE_BELOW, drift_words
from driftscope.metrics.hidden import per_depth
from driftscope.trace.records import edges_of
from driftscope.vocabulary import Growth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InsideSums:
    """Sums over the chains of one prompt; sequences are by depth, from depth 1 on."""

    chains: int
    bins: Matrix
    """Attention by depth and distance, [K, bins], the sink left out; see
    `driftscope.trace.records`."""
    sink: Sequence[float]
    """Attention on the sink."""
    own: Sequence[float]
    """Attention on the chain itself."""
    even: float
    """Attention that the sink would get if it were spread evenly over the verified slots."""
    fed: Sequence[float]
    """RMS of the state fed to the next depth."""
    reached: Sequence[float]
    """Number of chains of which everything before this depth is accepted."""
    sure: Sequence[float]
    """Probability that the drafter gives to its own token, in these chains."""
    right: Sequence[float]
    """Number of these chains whose token here is the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfidence:
    """How sure a drafter is, and how often it is right, by depth, among the drafts of which
    everything before is accepted; None at a depth that no draft reaches."""

    sure: tuple[float | None, ...]
    """Mean probability that it gives to its own token."""
    right: tuple[Estimate | None, ...]
    """Share of its tokens that are the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The inside of a drafter along its chains. `attention_drift` and `growth` are None with K = 1,
    at which nothing can change over depth."""

    attention_drift: AttentionDrift | None
    growth: Estimate | None
    """RMS of the state fed forward at depth K over that at depth 1."""
    confidence: TrialConfidence
    depths: int

    @written_property
    def grows(self) -> Growth:
        """Whether the state grows, with the thresholds of `hidden_state_grows` and
        `hidden_state_stable`."""
        spread = self.growth.interval if self.growth else None
        if spread is None or not spread.low > 0:
            return Growth.CANNOT_TELL
        low, high = (per_depth(end, self.depths) for end in (spread.low, spread.high))
        if low > GROWS_ABOVE.value:
            return Growth.GROWS
        return Growth.KEEPS_ITS_SIZE if high < STABLE_BELOW.value else Growth.CANNOT_TELL

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for people, without a full stop."""
        if self.growth is not None and not np.isfinite(self.growth.value):
            return ()
        drift = self.attention_drift
        attention = () if drift is None else (drift_words(drift, "prompt"),)
        growth = () if self.growth is None else (_growth_words(self.growth, self),)
        sure, right = self.confidence.sure[0], self.confidence.right[0]
        if sure is None or right is None:
            return (*attention, *growth)
        words = (
            f"the drafter is {percent(sure)} sure of its first token, which is right in "
            f"{percent(right.value)}{between_percent(right.interval)}"
        )
        return (*attention, *growth, words)


def inside_of(prompts: Sequence[InsideSums]) -> Inside:
    """Return what the chains of several prompts show. Each prompt is one cluster."""
    depths = len(prompts[0].fed)
    fed = np.array([prompt.fed for prompt in prompts])
    several = depths > 1
    reached, sure, right = (
        np.array([getattr(prompt, name) for prompt in prompts])
        for name in ("reached", "sure", "right")
    )
    total = reached.sum(axis=0)
    return Inside(
        attention_drift=_attention(prompts, depths) if several else None,
        growth=estimates(ratio_of(fed[:, -1:], fed[:, :1]))[0] if several else None,
        confidence=TrialConfidence(
            sure=tuple(
                float(s / n) if n else None for s, n in zip(sure.sum(axis=0), total, strict=True)
            ),
            right=_rates(right, reached),
        ),
        depths=depths,
    )


def _attention(prompts: Sequence[InsideSums], depths: int) -> AttentionDrift:
    chains = np.array([prompt.chains for prompt in prompts])
    weight = chains.astype(np.float64)
    sink = np.array([prompt.sink for prompt in prompts])
    drift = drift_by_distance(
        DistanceSums(
            chains=chains,
            weight=weight,
            bins=np.stack([prompt.bins for prompt in prompts]),
            sink=sink,
            null=np.zeros_like(sink),
            own=np.array([prompt.own for prompt in prompts]),
        ),
        edges_of(depths),
    )
    kept = SinkSums(
        chains=chains,
        weight=weight,
        first=sink[:, 0],
        last=sink[:, -1],
        even=np.array([prompt.even for prompt in prompts]),
        long_chains=np.zeros_like(chains),
        long_weight=np.zeros_like(weight),
        long_first=np.zeros_like(weight),
    )
    return with_sink(drift, kept)


def _rates(right: Matrix, reached: Matrix) -> tuple[Estimate | None, ...]:
    """Return the rates by depth, over the prompts with a draft that reaches the depth."""
    out = list[Estimate | None]()
    for depth in range(reached.shape[1]):
        is_reached = reached[:, depth] > 0
        if not is_reached.any():
            out.append(None)
            continue
        rate = ratio_of(right[is_reached, depth, None], reached[is_reached, depth, None])
        spread = rate_intervals(rate)
        out.append(Estimate(value=float(rate.value[0]), interval=spread[0] if spread else None))
    return tuple(out)


def _growth_words(growth: Estimate, inside: Inside) -> str:
    size = f"{times(growth.value)}{between(growth.interval)} by depth {inside.depths}"
    if inside.grows is Growth.GROWS:
        return f"the state fed to the next depth grows: {size}"
    if inside.grows is Growth.KEEPS_ITS_SIZE:
        return f"the state fed to the next depth keeps its size: {size}"
    return f"whether the state fed to the next depth grows cannot be told: {size}"
