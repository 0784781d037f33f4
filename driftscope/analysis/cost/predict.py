"""TPOT for every K and batch size, and the K with the smallest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from driftscope.analysis.cost.model import CostModel, Span
from driftscope.analysis.cost.round_lengths import RoundLength
from driftscope.analysis.cost.served import Served
from driftscope.analysis.statistics.intervals.interval import Interval

WIDEST = 3.0
"""Ratio of the upper to the lower end of a time or speed, above which the prediction has no
support: two K differ in speed by far less, so a figure with a wider interval does not help to
choose. This is driftscope's own bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, measured or bounded, with the ends between which it lies."""

    value: float
    """Measured value, or the model's guess; NaN if it is impossible, such as a time of 0."""
    interval: Interval | None
    """95% interval of a measured figure; bounds of one that was not. None if there is no support,
    see WIDEST: then the figure is not known."""

    def surely_above(self, bound: float) -> bool:
        """Whether the whole interval lies above `bound`."""
        return self.interval is not None and self.interval.low > bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """TPOT at one batch size for K = 0, 1, ..."""

    batch: int
    weight: float
    """Share of the decode steps, counted once per request, at this batch size."""
    tpot_s: tuple[Estimate, ...]
    ran: Estimate
    """TPOT with the K that ran, or with several K as they were served."""
    best_k: int
    """K with the smallest value; a guess where it was not measured."""
    gain: Estimate
    """Speed with `best_k` over that of `ran`, minus 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """TPOT for each K, and as served, at one batch size or over all of them."""

    by_k: tuple[Span, ...]
    ran: Span


def tpot_at(model: CostModel, length: RoundLength, batch: int, k: int) -> Span:
    """Return the time per output token; `length` is that of `k`."""
    step, bias = model.step(batch, k, length.error), 1.0 + length.bias
    return Span(
        value=step.value / length.value,
        low=step.low / (length.value * bias),
        high=step.high / length.value * bias,
    )


def tpot_of(model: CostModel, lengths: Sequence[RoundLength], served: Served, batch: int) -> Span:
    """Return the time per output token at a batch size with K as served."""
    shares = served.at(batch)
    if len(shares) == 1:
        (k,) = shares
        return tpot_at(model, lengths[k], batch, k)
    error = max(lengths[k].error for k in shares)
    steps = [(share, model.step(batch, k, error)) for k, share in shares.items()]
    tokens = sum(share * lengths[k].value for k, share in shares.items())
    return scaled(summed(steps), 1.0 / tokens)


def times_at(model: CostModel, lengths: Sequence[RoundLength], served: Served, batch: int) -> Times:
    """Return the times per output token at one batch size."""
    return Times(
        by_k=tuple(tpot_at(model, length, batch, k) for k, length in enumerate(lengths)),
        ran=tpot_of(model, lengths, served, batch),
    )


def times_over(model: CostModel, lengths: Sequence[RoundLength], served: Served) -> Times:
    """Return the times per output token over the batch sizes as served."""
    parts = [(weight, times_at(model, lengths, served, batch)) for batch, weight in model.mix]
    return Times(
        by_k=tuple(
            summed([(weight, part.by_k[k]) for weight, part in parts]) for k in range(len(lengths))
        ),
        ran=summed([(weight, part.ran) for weight, part in parts]),
    )


def over_mix(model: CostModel, lengths: Sequence[RoundLength], k_of: Mapping[int, int]) -> Span:
    """Return the time per output token over the batch sizes as served, each with its own K."""
    return summed(
        [(weight, tpot_at(model, lengths[k_of[b]], b, k_of[b])) for b, weight in model.mix]
    )


def summed(parts: Sequence[tuple[float, Span]]) -> Span:
    """Return the sum of weighted spans, all of whose ends are taken together."""
    return Span(
        value=sum(weight * each.value for weight, each in parts),
        low=sum(weight * each.low for weight, each in parts),
        high=sum(weight * each.high for weight, each in parts),
    )


def scaled(span: Span, factor: float) -> Span:
    """Return the span times a positive factor."""
    return Span(value=span.value * factor, low=span.low * factor, high=span.high * factor)


def speed_ratio(now: Span, then: Span) -> Span:
    """Return the speed with the second time over that with the first."""
    return Span(
        value=_over(now.value, then.value),
        low=_over(now.low, then.high),
        high=_over(now.high, then.low),
    )


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def estimate(span: Span) -> Estimate:
    """Return a time or speed ratio as an estimate, without interval if it is too wide."""
    value = span.value if span.value > 0 and math.isfinite(span.value) else math.nan
    known = math.isfinite(value) and span.low > 0 and span.high < WIDEST * span.low
    return Estimate(value=value, interval=Interval.of(span.low, span.high) if known else None)


def gain_of(now: Span, then: Span) -> Estimate:
    """Return the speed with the second time over that with the first, minus 1."""
    speed = estimate(speed_ratio(now, then))
    spread = speed.interval and Interval.of(speed.interval.low - 1.0, speed.interval.high - 1.0)
    return replace(speed, value=speed.value - 1.0, interval=spread)


def prediction(batch: int, weight: float, times: Times, within: Times) -> Prediction:
    """Return the prediction; `within` are the times with which speeds are compared."""
    best = min(range(len(times.by_k)), key=lambda k: times.by_k[k].value)
    return Prediction(
        batch=batch,
        weight=weight,
        tpot_s=tuple(estimate(each) for each in times.by_k),
        best_k=best,
        ran=estimate(times.ran),
        gain=gain_of(within.ran, within.by_k[best]),
    )
