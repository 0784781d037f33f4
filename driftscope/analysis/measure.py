"""The metrics of any set of rounds and chains: a whole run, or one segment of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from driftscope.analysis.chains import Chains
from driftscope.analysis.interval import Interval, per_request, ratio_intervals
from driftscope.analysis.rounds import Rounds
from driftscope.analysis.summary import Acceptance, Attention, ByDepth, Confidence, Hidden
from driftscope.metrics import acceptance as formula
from driftscope.metrics.attention import even_share, no_drift, over_layers, per_layer, visible_sink
from driftscope.metrics.chains import Array, by_depth
from driftscope.metrics.hidden import growth


def acceptance(rounds: Rounds, k: int, *, intervals: bool = False) -> Acceptance:
    """Acceptance over `rounds`, of which there is at least one."""
    n, accepted = len(rounds), int(rounds.accepted.sum())
    histogram = formula.accepted_histogram(rounds.accepted, k)
    counts = formula.counts_of(histogram)
    spread = _acceptance_intervals(rounds, k) if intervals else None
    return Acceptance(
        mean_length=formula.mean_length(accepted, n),
        marginal=formula.marginal_rates(counts, n),
        conditional=formula.conditional_rates(counts, n),
        histogram=tuple(int(count) for count in histogram),
        token_rate=formula.token_rate(accepted, int(rounds.drafted.sum())),
        mean_length_interval=spread[0] if spread else None,
        marginal_interval=spread[1:] if spread else None,
    )


def _acceptance_intervals(rounds: Rounds, k: int) -> tuple[Interval, ...] | None:
    """Of the acceptance length, then of the marginal rate at each depth."""
    reached = rounds.accepted[:, None] >= np.arange(1, k + 1)[None, :]
    length = 1.0 + rounds.accepted[:, None]
    top = per_request(rounds.request, np.hstack([length, reached]).astype(np.float64))
    bottom = per_request(rounds.request, np.ones((len(rounds), 1)))
    return ratio_intervals(top, bottom)


def attention(
    chains: Chains, k: int, sink_slots: Sequence[int], *, sinkless: bool = False
) -> Attention:
    """Masses by depth of `chains`, and the no-drift expectation where it can be stated.

    `sinkless`: a sink was looked for and there is none, so that no class of its own is missing.
    """
    masses = {name: over_layers(values) for name, values in chains.masses.items()}
    mean = {name: by_depth(values, chains.weight) for name, values in masses.items()}
    sink = masses.get("sink_mass")
    visible = visible_sink(chains.position, sink_slots)
    expected, sink_1 = None, None if sink is None else sink[:, 0]
    if sinkless and "self_mass" in masses:
        sink_1 = np.where(np.isfinite(masses["self_mass"][:, 0]), 0.0, np.nan)
    if sink_1 is not None and "self_mass" in masses:
        null = masses.get("null_mass")
        null_1 = None if null is None else null[:, 0]
        expected = no_drift(chains.position, sink_1, null_1, visible, k, chains.weight)
    return Attention(
        sink_mass=mean.get("sink_mass"),
        prompt_mass=mean.get("prompt_mass"),
        generated_mass=mean.get("generated_mass"),
        self_mass=mean.get("self_mass"),
        null_mass=mean.get("null_mass"),
        no_drift_self_mass=_tuple(expected.self_mass) if expected else None,
        no_drift_kept=_tuple(expected.kept) if expected else None,
        even_sink_mass=None
        if sink is None
        else even_share(chains.position, visible, chains.weight * np.isfinite(sink[:, 0])),
        by_layer={
            name: tuple(_tuple(layers) for layers in per_layer(values, chains.weight))
            for name, values in chains.masses.items()
        },
    )


def hidden(
    chains: Chains, aux_rms: ByDepth | None = None, aux_norm_rms: ByDepth | None = None
) -> Hidden:
    """RMS by depth of `chains`; the captured layers' are handed through."""
    mean = {name: by_depth(values, chains.weight) for name, values in chains.by_depth.items()}
    fed = mean.get("fed_rms")
    return Hidden(
        in_rms=mean.get("in_rms"),
        prenorm_rms=mean.get("prenorm_rms"),
        postnorm_rms=mean.get("postnorm_rms"),
        fed_rms=fed,
        growth=None if fed is None else growth(fed),
        growth_interval=_growth_interval(chains),
        aux_rms=aux_rms,
        aux_norm_rms=aux_norm_rms,
    )


def _growth_interval(chains: Chains) -> Interval | None:
    fed = chains.by_depth.get("fed_rms")
    if fed is None:
        return None
    good = np.isfinite(fed[:, 0]) & np.isfinite(fed[:, -1])
    request, weighted = chains.request[good], fed[good] * chains.weight[good, None]
    last = per_request(request, weighted[:, -1:])
    first = per_request(request, weighted[:, :1])
    found = ratio_intervals(last, first)
    return found[0] if found else None


def confidence(chains: Chains) -> Confidence:
    """Top-1 probability and entropy by depth of `chains`."""
    top1, entropy = chains.by_depth.get("top1"), chains.by_depth.get("entropy")
    return Confidence(
        top1=None if top1 is None else by_depth(top1, chains.weight),
        entropy=None if entropy is None else by_depth(entropy, chains.weight),
    )


def _tuple(values: Array) -> ByDepth:
    return tuple(float(value) for value in values)
