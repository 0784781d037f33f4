"""Figures of a run, one class per quantity: acceptance, attention, hidden states and others.

Every per-depth tuple starts with depth 1. None means that the quantity does not exist in the run;
NaN means that it was measured but gave no finite number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.calibration import NONE as NO_CALIBRATION
from driftscope.analysis.figures.calibration import Calibrations
from driftscope.analysis.figures.chains import Chains, Mean
from driftscope.analysis.figures.near_misses import NearMisses
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.permutation import departure
from driftscope.analysis.statistics.ratio import (
    Ratio,
    intervals,
    rate_intervals,
    rate_over_clusters,
    ratio_of,
)
from driftscope.metrics import acceptance as formula
from driftscope.metrics.attention import Array, sink_retention
from driftscope.metrics.hidden import growth, imbalance
from driftscope.vocabulary import AUX, MASSES, RMS_BY_DEPTH

Counts = NDArray[np.int64]
OverClusters = Callable[..., Ratio]
"""Returns the ratios of columns of requests, over the clusters of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFall:
    """The surest fall of the conditional rate from one depth to a deeper one."""

    first: int
    """Depth from which it falls, from 1."""
    depth: int
    """Depth to which it falls."""
    rate: float
    """Conditional rate at `depth`."""
    lost: float
    """Conditional rate at `first` minus that at `depth`, within requests; below 0 if every depth
    accepts more than those before."""
    interval: Interval
    """95% interval of `lost`, simultaneous for all pairs of depths."""


def chain_fall(reached: Counts, at_risk: Counts, over_clusters: OverClusters) -> ChainFall | None:
    """Return the fall of the conditional rate whose interval lies highest, from the rounds of each
    request that accept a depth and those that get to it, [requests, K]; None if no two depths can
    be compared.

    Rounds that reach a depth are the easy ones. Where difficulty differs between rounds, the rate
    of a drafter that guesses every depth alike therefore rises with depth (survivors of mixed
    populations: Vaupel and Yashin 1985, https://doi.org/10.1080/00031305.1985.10479424). What
    cannot come from survivors is a rate that falls from one depth to a deeper one.

    Both depths are compared within requests, each with the weight n' of its rounds that get to the
    deeper one: the mean of n' (h - 1) / (n - 1) - h', where n and n' are the rounds that get to the
    two depths and h and h' those accepted there. One hit is left out because every round that gets
    deeper is one. Survivors among the rounds of a request still hide a part of the fall, which is
    therefore a lower bound. All pairs of depths are tested together, by the largest |t| over random
    signs of the clusters (`permutation.departure`).
    """
    first, deeper = np.triu_indices(reached.shape[1], k=1)
    if not len(first):
        return None
    known = at_risk[:, first] > 1
    before = (reached[:, first] - 1) / np.maximum(at_risk[:, first] - 1, 1)
    weight, after = at_risk[:, deeper] * known, reached[:, deeper] * known
    joint = departure(over_clusters(ratio_of, weight * before - after, weight))
    half = joint.critical * joint.error
    low = np.where((joint.error > 0) & np.isfinite(half), joint.gap - half, -np.inf)
    pair = int(np.argmax(low))
    interval = Interval.between(float(low[pair]), float(joint.gap[pair] + half[pair]))
    if interval is None:
        return None
    return ChainFall(
        first=int(first[pair]) + 1,
        depth=int(deeper[pair]) + 1,
        rate=float(after[:, pair].sum() / weight[:, pair].sum()),
        lost=float(joint.gap[pair]),
        interval=interval,
    )


ByDepth = tuple[float, ...]
Spread = tuple[Interval | None, ...]
"""95% interval at each depth; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceAtK:
    """Acceptance over the rounds that verified exactly `k` tokens, including rounds that a length
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
    depth verified it."""
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
class LengthAtK:
    """Acceptance length with another K than the one that ran."""

    k: int
    mean_length: float
    mean_length_interval: Interval | None
    """95% interval over clusters of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention over recorded chains, averaged over layers; see `driftscope.metrics.attention`."""

    sink_mass: ByDepth | None
    prompt_mass: ByDepth | None
    generated_mass: ByDepth | None
    self_mass: ByDepth | None
    null_mass: ByDepth | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """Confidence over recorded chains; see `driftscope.metrics.confidence`."""

    top1: ByDepth | None
    entropy: ByDepth | None
    calibration: Calibrations = NO_CALIBRATION
    near_misses: NearMisses | None = None
    """None if it was not recorded what rejected tokens came close to."""


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
    """Rounds that verified fewer than K draft tokens."""
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
    begun_before: int = 0
    """Requests of a whole run whose first recorded step lies beyond their prompt by more than a
    draft: the recording began in the middle of them, or their first rows are lost."""


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


def acceptance_of(
    rounds: Rounds, *, spread: bool = False, by_k: tuple[AcceptanceAtK, ...] = ()
) -> Acceptance:
    """Return the acceptance over `rounds`, which must contain at least one; `spread`: with
    intervals."""
    n, histogram = len(rounds), rounds.histogram.sum(axis=0)
    formula.check_identities(histogram, n, rounds.k)
    counts, accepted = formula.counts_of(histogram), int(rounds.accepted.sum())
    reached, at_risk = rounds.reached.sum(axis=0), rounds.at_risk.sum(axis=0)
    length, marginal = _acceptance_intervals(rounds) if spread else (None, None)
    return Acceptance(
        mean_length=formula.mean_length(accepted, n),
        marginal=_tuple(formula.running_product(reached, at_risk)),
        conditional=formula.risk_set_rates(reached, at_risk),
        counted=formula.marginal_rates(counts, n),
        died=tuple(int(n) for n in at_risk - reached),
        by_k=by_k,
        histogram=tuple(int(count) for count in histogram),
        token_rate=formula.token_rate(accepted, int(rounds.verified.sum())),
        mean_length_interval=length,
        marginal_interval=marginal,
        mean_length_by_request=formula.mean_length_by_request(rounds.accepted, rounds.rounds),
        mean_length_by_token=formula.mean_length_by_token(histogram),
    )


def _acceptance_intervals(rounds: Rounds) -> tuple[Interval | None, Spread | None]:
    """Return the intervals of the acceptance length, within 1 and K + 1, and of the marginal rate
    at each depth."""
    lengths = intervals(rounds.length_ratio())
    length = lengths[0].within(1.0, rounds.k + 1.0) if lengths and lengths[0] else None
    return length, rate_intervals(rounds.marginal_ratio())


def acceptance_at(k: int, requests: int, rounds: Rounds) -> AcceptanceAtK:
    """Return the acceptance over the `rounds`, at least one, of a run that drafted `k` tokens."""
    length, marginal = _acceptance_intervals(rounds)
    rates = rounds.marginal_ratio().first(k).value
    return AcceptanceAtK(
        k=k,
        requests=requests,
        rounds=len(rounds),
        mean_length=formula.mean_length(int(rounds.accepted.sum()), len(rounds)),
        mean_length_interval=length,
        marginal=_tuple(rates),
        marginal_interval=None if marginal is None else marginal[:k],
    )


def attention_of(chains: Chains) -> Attention:
    """Return the masses of `chains` by depth."""
    mean = {name: _mean(chains.over_layers(name)) for name in MASSES}
    sink = mean["sink_mass"]
    return Attention(
        sink_mass=mean["sink_mass"],
        prompt_mass=mean["prompt_mass"],
        generated_mass=mean["generated_mass"],
        self_mass=mean["self_mass"],
        null_mass=mean["null_mass"],
        sink_retention=None if sink is None else sink_retention(sink),
        by_layer={
            name: tuple(_tuple(layers) for layers in chains.by_layer(name))
            for name in MASSES
            if name in chains.means
        },
    )


def hidden_of(chains: Chains) -> Hidden:
    """Return the RMS of `chains` by depth, and of the captured target layers."""
    means = chains.means
    fed, grown = _mean(means.get("fed_rms")), means.get("growth")
    aux, aux_norm = (_mean(means.get(name)) for name in AUX)
    spread = intervals(grown.ratio()) if grown else None
    return Hidden(
        in_rms=_mean(means.get("in_rms")),
        prenorm_rms=_mean(means.get("prenorm_rms")),
        postnorm_rms=_mean(means.get("postnorm_rms")),
        fed_rms=fed,
        growth=None if fed is None else growth(fed),
        growth_interval=spread[0] if spread else None,
        aux_rms=aux,
        aux_norm_rms=aux_norm,
        aux_imbalance=imbalance(aux),
    )


def confidence_of(
    chains: Chains,
    calibration: Calibrations = NO_CALIBRATION,
    near_misses: NearMisses | None = None,
) -> Confidence:
    """Return top-1 probability and entropy of `chains` by depth, with what else is known."""
    top1, entropy = (_mean(chains.means.get(name)) for name in ("top1", "entropy"))
    return Confidence(top1=top1, entropy=entropy, calibration=calibration, near_misses=near_misses)


def spread_of_chains(chains: Chains) -> dict[str, Spread]:
    """Return 95% intervals by depth of the quantities measured in `chains`, by column; `growth`
    is the fed RMS over the fed RMS at depth 1. Empty with fewer than two requests. None for a
    mass that no chain has, such as the mass on the chain itself at depth 1, which is 0 by
    construction."""
    out: dict[str, Spread] = {}
    for name in (*MASSES, "top1"):
        mean = chains.over_layers(name)
        if mean is not None:
            mass_intervals = _non_empty(rate_intervals(mean.ratio()))
            has_chains = np.any(mean.top != 0, axis=0)
            out[name] = tuple(
                mass_interval if any_ else None
                for mass_interval, any_ in zip(mass_intervals, has_chains, strict=False)
            )
    for name in (*RMS_BY_DEPTH, "entropy"):
        if name in chains.means:
            mean = chains.means[name]
            out[name] = _non_empty(intervals(mean.ratio()))
    if "fed_rms" in chains.means:
        fed = chains.means["fed_rms"]
        out["growth"] = _non_empty(intervals(fed.ratio(fed.top[:, :1])))
    return {name: spread for name, spread in out.items() if spread}


def spread_of_rounds(rounds: Rounds) -> dict[str, Spread]:
    """Return 95% intervals by depth of the `conditional` rate and of the share of rounds that
    `died` at the depth. Empty with fewer than two requests."""
    died = rounds.over_clusters(ratio_of, rounds.at_risk - rounds.reached, rounds.rounds[:, None])
    out = {
        "conditional": _non_empty(rate_intervals(rounds.conditional_ratio())),
        "died": _non_empty(rate_intervals(died)),
    }
    return {name: spread for name, spread in out.items() if spread}


def spread_of_fallback(
    rounds: Rounds, undrafted: Mapping[str, NDArray[np.int64]]
) -> FallbackSpread:
    """Return 95% intervals of the shares of decode steps; `undrafted` steps are by reason, with
    rows like those of `rounds`."""
    without = sum(undrafted.values(), np.zeros_like(rounds.rounds))
    steps, rejected = rounds.rounds + without, rounds.histogram[:, 0]

    def interval(of: NDArray[np.int64]) -> Interval | None:
        return rate_over_clusters(of, steps, rounds.cluster, rounds.crossed)[1]

    by_reason = {name: interval(n) for name, n in undrafted.items()}
    return FallbackSpread(
        accepted=interval(rounds.rounds - rejected),
        rejected=interval(rejected),
        undrafted=interval(without),
        by_reason={name: share for name, share in by_reason.items() if share},
        never=interval(np.zeros_like(steps)),
    )


def _non_empty(by_depth: Spread | None) -> Spread:
    """Return the intervals, or () if no figure has one."""
    return by_depth if by_depth and any(by_depth) else ()


def _mean(mean: Mean | None) -> ByDepth | None:
    return None if mean is None else _tuple(mean.all())


def _tuple(values: Array) -> ByDepth:
    return tuple(float(value) for value in values)
