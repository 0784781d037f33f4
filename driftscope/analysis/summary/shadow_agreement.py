"""Agreement with the target of chains under an intervention, beside the served ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes, Matrix
from driftscope.analysis.statistics.clusters import ratio_over
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals
from driftscope.analysis.statistics.intervals.cluster_ratio import ratio_of
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.vocabulary import LIVE_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of chains with the tokens that the target produced, over the same rounds."""

    length: float
    """Mean number of leading tokens per chain that equal the target's."""
    whole: int
    """Number of chains of which every token equals the target's."""
    reached: tuple[float | None, ...]
    """Share of the chains that equal the target's tokens up to each depth, among those as long;
    None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowAgreement:
    """One live intervention: its chains and the served ones of the same rounds."""

    intervention: str
    chains: int
    """Number of rounds that are compared: the target produced a token at each place."""
    left_out: int
    """Number of rounds that are not: the request ended or was interrupted before that."""
    clusters: int
    """Number of independent requests, or prompts, that the rounds come from."""
    shadow: Agreement
    served: Agreement
    further: int
    """Number of rounds in which the chain agrees further than the served one."""
    less_far: int
    """Number of rounds in which it agrees less far."""
    difference: float
    """`shadow.length` minus `served.length`, in tokens per round."""
    interval: Interval | None
    """95% interval of the difference, over clusters; None with too few of them."""
    by_depth: tuple[float | None, ...]
    """Difference of `reached`, by depth."""
    by_depth_interval: tuple[Interval | None, ...]

    @property
    def words(self) -> str:
        """Return what the live shadow says of acceptance, in words."""
        begin = (
            f"live shadow: with {LIVE_CHANGES[self.intervention]} the chain would have agreed for "
            f"{self.shadow.length:.2f} tokens per round against {self.served.length:.2f}, and "
            f"whole in {self.shadow.whole:,} of {self.chains:,} rounds against "
            f"{self.served.whole:,}"
        )
        if self.interval is None:
            return f"{begin}: difference {self.difference:+.2f}; cannot tell: too few requests"
        low, high = self.interval.low, self.interval.high
        return f"{begin}: difference {self.difference:+.2f} [{low:+.2f}, {high:+.2f}]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShadowCounts:
    """Counted chains of one intervention; each array is [rows]."""

    k: NDArray[np.int64]
    known: NDArray[np.int64]
    agreed: NDArray[np.int64]
    served_agreed: NDArray[np.int64]
    chains: NDArray[np.int64]
    cluster: Codes


def shadow_agreement(intervention: str, counts: ShadowCounts) -> ShadowAgreement | None:
    """Return the agreement; None if no round can be compared.

    Only rounds whose K tokens the target has produced count. Whether they are there depends on the
    length of the answer and not on either chain, so the choice favours none of them.
    """
    there = counts.known == counts.k
    if not there.any():
        return None
    k, agreed, served, weight, cluster = (
        each[there]
        for each in (
            counts.k,
            counts.agreed,
            counts.served_agreed,
            counts.chains,
            counts.cluster,
        )
    )
    depth = np.arange(1, int(k.max()) + 1)
    long = (k[:, None] >= depth) * weight[:, None].astype(np.float64)
    moved = ((agreed[:, None] >= depth) * 1.0 - (served[:, None] >= depth)) * long
    gain = ((agreed - served) * weight)[:, None].astype(np.float64)
    ratio = ratio_over(ratio_of, (gain, weight[:, None].astype(np.float64)), cluster)
    depths = ratio_over(ratio_of, (moved, long), cluster)
    spread, spread_by_depth = intervals(ratio), intervals(depths)
    return ShadowAgreement(
        intervention=intervention,
        chains=int(weight.sum()),
        left_out=int(counts.chains[~there].sum()),
        clusters=len(np.unique(cluster)),
        shadow=_agreement(agreed, k, weight, long),
        served=_agreement(served, k, weight, long),
        further=int(weight[agreed > served].sum()),
        less_far=int(weight[agreed < served].sum()),
        difference=float(ratio.value[0]),
        interval=spread[0] if spread else None,
        by_depth=_shares(depths.value),
        by_depth_interval=tuple(spread_by_depth) if spread_by_depth else (None,) * len(depth),
    )


def _agreement(
    agreed: NDArray[np.int64], k: NDArray[np.int64], weight: NDArray[np.int64], long: Matrix
) -> Agreement:
    depth = np.arange(1, long.shape[1] + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        reached = ((agreed[:, None] >= depth) * long).sum(axis=0) / long.sum(axis=0)
    return Agreement(
        length=float((agreed * weight).sum() / weight.sum()),
        whole=int(weight[agreed == k].sum()),
        reached=_shares(reached),
    )


def _shares(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(float(each) if np.isfinite(each) else None for each in values)
