"""Metrics of any set of rounds and chains: a whole run, or one segment of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chains import Chains, Mean
from driftscope.analysis.figures.results import (
    Acceptance,
    AcceptanceAtK,
    Attention,
    ByDepth,
    Confidence,
    FallbackSpread,
    Hidden,
    ReliabilityBin,
    Spread,
)
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.query.column_arrays import sums
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import (
    intervals,
    rate_intervals,
    rate_over_clusters,
    ratio_of,
)
from driftscope.metrics import acceptance as formula
from driftscope.metrics.attention import Array, sink_retention
from driftscope.metrics.confidence import calibration_error
from driftscope.metrics.hidden import growth, imbalance
from driftscope.vocabulary import AUX, MASSES, RMS_BY_DEPTH


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
        token_rate=formula.token_rate(accepted, int(rounds.drafted.sum())),
        mean_length_interval=length,
        marginal_interval=marginal,
        mean_length_by_request=formula.mean_length_by_request(rounds.accepted, rounds.rounds),
        mean_length_by_token=formula.mean_length_by_token(histogram),
    )


def _acceptance_intervals(
    rounds: Rounds,
) -> tuple[Interval | None, Spread | None]:
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
    even, sink = chains.means.get("even_sink"), mean["sink_mass"]
    return Attention(
        sink_mass=mean["sink_mass"],
        prompt_mass=mean["prompt_mass"],
        generated_mass=mean["generated_mass"],
        self_mass=mean["self_mass"],
        null_mass=mean["null_mass"],
        sink_retention=None if sink is None else sink_retention(sink),
        even_sink_mass=None
        if even is None or "sink_mass" not in chains.means
        else float(even.all()[0]),
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
        aux_norm_imbalance=imbalance(aux_norm),
    )


def confidence_of(chains: Chains, verified: pa.Table | None = None) -> Confidence:
    """Return top-1 probability and entropy of `chains` by depth. The calibration is included if
    `verified` tokens by depth and bin are given, which are sums of
    `passes.verified.reliability`."""
    bins = _bins(verified) if verified is not None and verified.num_rows else None
    return Confidence(
        top1=_mean(chains.means.get("top1")),
        entropy=_mean(chains.means.get("entropy")),
        ece=None if bins is None else _errors(bins, chains.depths),
        reliability=() if bins is None else tuple(_reliability(bins)),
    )


def spread_of_chains(chains: Chains) -> dict[str, Spread]:
    """Return 95% intervals by depth of the quantities measured in `chains`, by column; `growth`
    is the fed RMS over the fed RMS at depth 1. Empty with fewer than two requests. None for a
    mass that no chain has, such as the mass on the chain itself at depth 1, which is 0 by
    construction."""
    out: dict[str, Spread] = {}
    for name in (*MASSES, "top1"):
        mean = chains.over_layers(name)
        if mean is not None:
            mass_intervals = _known(rate_intervals(mean.ratio()))
            there = np.any(mean.top != 0, axis=0)
            out[name] = tuple(
                each if any_ else None for each, any_ in zip(mass_intervals, there, strict=False)
            )
    for name in (*RMS_BY_DEPTH, "entropy"):
        if name in chains.means:
            mean = chains.means[name]
            out[name] = _known(intervals(mean.ratio()))
    if "fed_rms" in chains.means:
        fed = chains.means["fed_rms"]
        out["growth"] = _known(intervals(fed.ratio(fed.top[:, :1])))
    return {name: each for name, each in out.items() if each}


def spread_of_rounds(rounds: Rounds) -> dict[str, Spread]:
    """Return 95% intervals by depth of the `conditional` rate and of the share of rounds that
    `died` at the depth. Empty with fewer than two requests."""
    died = rounds.over_clusters(ratio_of, rounds.at_risk - rounds.reached, rounds.rounds[:, None])
    out = {
        "conditional": _known(rate_intervals(rounds.conditional_ratio())),
        "died": _known(rate_intervals(died)),
    }
    return {name: each for name, each in out.items() if each}


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
        by_reason={name: each for name, each in by_reason.items() if each},
        never=interval(np.zeros_like(steps)),
    )


def _known(by_depth: Spread | None) -> Spread:
    """Return the intervals, or () if no figure has one."""
    return by_depth if by_depth and any(by_depth) else ()


def _bins(verified: pa.Table) -> dict[str, Array]:
    """Return the columns of `verified`, sorted by depth and bin."""
    verified = verified.sort_by([("depth", "ascending"), ("bin", "ascending")])
    return {name: sums(verified, name) for name in verified.column_names}


def _errors(bins: dict[str, Array], k: int) -> tuple[float | None, ...]:
    at = [bins["depth"] == depth for depth in range(k)]
    return tuple(
        calibration_error(*(bins[name][mine] for name in ("weight", "sure", "accepted")))
        for mine in at
    )


def _reliability(bins: dict[str, Array]) -> Iterator[ReliabilityBin]:
    for at in range(len(bins["depth"])):
        yield ReliabilityBin(
            depth=int(bins["depth"][at]) + 1,
            tokens=int(bins["tokens"][at]),
            confidence=float(bins["sure"][at] / bins["weight"][at]),
            accepted=float(bins["accepted"][at] / bins["weight"][at]),
        )


def _mean(mean: Mean | None) -> ByDepth | None:
    return None if mean is None else _tuple(mean.all())


def _tuple(values: Array) -> ByDepth:
    return tuple(float(value) for value in values)
