"""The metrics of any set of rounds and chains: a whole run, or one segment of it."""

from __future__ import annotations

from driftscope.analysis.chains import Chains, Mean
from driftscope.analysis.interval import Interval, intervals, rate_intervals, ratio_of
from driftscope.analysis.rounds import Rounds
from driftscope.analysis.shape import MASSES
from driftscope.analysis.summary import Acceptance, Attention, ByDepth, Confidence, Hidden
from driftscope.metrics import acceptance as formula
from driftscope.metrics.chains import Array
from driftscope.metrics.hidden import growth


def acceptance(rounds: Rounds, k: int, *, spread: bool = False) -> Acceptance:
    """Acceptance over `rounds`, of which there is at least one; `spread`: with intervals."""
    n, histogram = len(rounds), rounds.histogram.sum(axis=0)
    formula.check_identities(histogram, n, k)
    counts, accepted = formula.counts_of(histogram), int(rounds.accepted.sum())
    length, marginal = _acceptance_intervals(rounds) if spread else (None, None)
    return Acceptance(
        mean_length=formula.mean_length(accepted, n),
        marginal=formula.marginal_rates(counts, n),
        conditional=formula.conditional_rates(counts, n),
        histogram=tuple(int(count) for count in histogram),
        token_rate=formula.token_rate(accepted, int(rounds.drafted.sum())),
        mean_length_interval=length,
        marginal_interval=marginal,
        mean_length_by_request=formula.mean_length_by_request(rounds.accepted, rounds.rounds),
        mean_length_by_token=formula.mean_length_by_token(histogram),
    )


def _acceptance_intervals(
    rounds: Rounds,
) -> tuple[Interval | None, tuple[Interval, ...] | None]:
    """Of the acceptance length, and of the marginal rate at each depth."""
    top, bottom = rounds.by_request()
    length = intervals(ratio_of(top[:, :1], bottom))
    return length[0] if length else None, rate_intervals(ratio_of(top[:, 1:], bottom))


def attention(chains: Chains) -> Attention:
    """Masses by depth of `chains`, and the no-drift expectation where it can be stated."""
    mean = {name: _mean(chains.over_layers(name)) for name in MASSES}
    expected, even = chains.means.get("no_drift"), chains.means.get("even_sink")
    drift = None if expected is None else expected.all()
    return Attention(
        sink_mass=mean["sink_mass"],
        prompt_mass=mean["prompt_mass"],
        generated_mass=mean["generated_mass"],
        self_mass=mean["self_mass"],
        null_mass=mean["null_mass"],
        no_drift_self_mass=None if drift is None else _tuple(drift),
        no_drift_kept=None if drift is None else _tuple(1.0 - drift),
        even_sink_mass=None
        if even is None or "sink_mass" not in chains.means
        else float(even.all()[0]),
        by_layer={
            name: tuple(_tuple(layers) for layers in chains.by_layer(name))
            for name in MASSES
            if name in chains.means
        },
    )


def hidden(chains: Chains) -> Hidden:
    """RMS by depth of `chains`, and of the captured target layers."""
    means = chains.means
    fed, grown = _mean(means.get("fed_rms")), means.get("growth")
    spread = intervals(ratio_of(grown.top, grown.bottom)) if grown else None
    return Hidden(
        in_rms=_mean(means.get("in_rms")),
        prenorm_rms=_mean(means.get("prenorm_rms")),
        postnorm_rms=_mean(means.get("postnorm_rms")),
        fed_rms=fed,
        growth=None if fed is None else growth(fed),
        growth_interval=spread[0] if spread else None,
        aux_rms=_mean(means.get("aux_rms")),
        aux_norm_rms=_mean(means.get("aux_norm_rms")),
    )


def confidence(chains: Chains) -> Confidence:
    """Top-1 probability and entropy by depth of `chains`."""
    return Confidence(
        top1=_mean(chains.means.get("top1")), entropy=_mean(chains.means.get("entropy"))
    )


def _mean(mean: Mean | None) -> ByDepth | None:
    return None if mean is None else _tuple(mean.all())


def _tuple(values: Array) -> ByDepth:
    return tuple(float(value) for value in values)
