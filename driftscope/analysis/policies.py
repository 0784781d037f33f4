"""Predicts what another policy would have served on recorded rounds, by recorded step times.

Policies are a threshold on the drafter's confidence, up to which drafts are verified, no draft
above a batch size, and the bound of all trimming: only what is accepted. K for all batches, by
batch and by context is `driftscope.analysis.advice`.

Tokens per round under a threshold have the two assumptions of `TrimmedAt` as bounds. What fewer
tokens to verify cost is known only from steps that had fewer: with one K, of which the tokens go
with the batch size, no curve tells the two apart. Policies are therefore tried only where steps of
a smaller K, or without speculation, were measured, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from driftscope.analysis.cost import MEASURED_SHARE, CostModel, Span
from driftscope.analysis.figures.calibration import TrimmedAt
from driftscope.analysis.number_words import percent
from driftscope.analysis.statistics.intervals import Z95, Interval
from driftscope.analysis.time_per_token import (
    Estimate,
    RoundLength,
    gain_of,
    scaled,
    summed,
    tpot_at,
)

WORTH = 0.02
"""Gain below which a policy is not worth its upkeep; driftscope's own bound, that of a schedule of
K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy, and what it would have served."""

    name: str
    """Policy in words, such as "threshold 0.5"."""
    threshold: float | None
    """Least confidence of a token that is verified; None for other policies."""
    off_above: int | None
    """Largest batch size that drafts; None for other policies."""
    verified: float
    """Draft tokens verified per round, of those that draft."""
    mean_length: float
    """Tokens per round, of those that draft."""
    tokens_per_s: Estimate
    """Output tokens per second of the busy engine; bounds where its steps were not measured."""
    gain: Estimate
    """Speed over that of the run, minus 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Figures of a run of one K that policies are tried on."""

    k: int
    length: RoundLength
    """Tokens per round as served."""
    trimmed: Sequence[TrimmedAt]
    tokens_per_s: float


def policies(model: CostModel, run: Recorded) -> tuple[Policy, ...]:
    """Return the policies; `model` is that with which speeds within the run are compared."""
    # Trimmed rounds are the same ones: what they lose is known better than what they yield.
    whole = replace(run.length, error=0.0)
    now, alone = (
        [(weight, tpot_at(model, length, batch, run.k)) for batch, weight in model.mix]
        for length in (whole, run.length)
    )
    fewer = sum(w for b, w in model.mix if any(model.cell(b, k) for k in range(run.k)))
    if fewer < MEASURED_SHARE or any(model.cell(b, run.k) is None for b in model.batches):
        return ()
    return (*_trimmings(model, run, now), *_off_above(model, run, alone))


ORACLE = "only what is accepted"
"""Policy that verifies no token in vain, which none can: the most that trimming may gain."""


def _trimmings(
    model: CostModel, run: Recorded, now: Sequence[tuple[float, Span]]
) -> Iterator[Policy]:
    most = TrimmedAt(
        threshold=0.0,
        verified=run.length.value - 1.0,
        mean_length=run.length.value,
        mean_length_interval=None,
        off=0.0,
    )
    for trimmed in (most, *run.trimmed):
        lost = max(1.0 - trimmed.mean_length / run.length.value, 0.0)
        off = (1.0 + trimmed.off) * math.exp(Z95 * min(run.length.error * lost, 10.0))
        then = []
        for batch, weight in model.mix:
            step = model.trimmed_step(batch, run.k, trimmed.verified)
            per_token = scaled(step, 1.0 / trimmed.mean_length)
            low, high = per_token.low / off, per_token.high * off
            then.append((weight, replace(per_token, low=low, high=high)))
        yield _policy(
            run,
            now,
            then,
            name=ORACLE if trimmed is most else f"threshold {trimmed.threshold:g}",
            threshold=None if trimmed is most else trimmed.threshold,
            off_above=None,
            verified=trimmed.verified,
            mean_length=trimmed.mean_length,
        )


def _off_above(
    model: CostModel, run: Recorded, now: Sequence[tuple[float, Span]]
) -> Iterator[Policy]:
    """Yield no draft above each batch size but the largest; 0 is no speculation."""
    one = RoundLength(value=1.0)
    none = [(w, tpot_at(model, one, batch, 0)) for batch, w in model.mix]
    for largest in (0, *model.batches[:-1]):
        then = [
            (weight, _exact(span)) if batch <= largest else off
            for batch, (weight, span), off in zip(model.batches, now, none, strict=True)
        ]
        kept = [
            (weight, _exact(span) if batch <= largest else span)
            for batch, (weight, span) in zip(model.batches, now, strict=True)
        ]
        yield _policy(
            run,
            kept,
            then,
            name=f"no draft above a batch of {largest}" if largest else "no speculation",
            threshold=None,
            off_above=largest,
            verified=float(run.k),
            mean_length=run.length.value,
        )


def _exact(span: Span) -> Span:
    return Span(value=span.value, low=span.value, high=span.value)


def _policy(
    run: Recorded,
    now: Sequence[tuple[float, Span]],
    then: Sequence[tuple[float, Span]],
    **more: object,
) -> Policy:
    gain = gain_of(summed(now), summed(then))
    spread = gain.interval
    known = None
    if spread is not None:
        low, high = (run.tokens_per_s * (1.0 + end) for end in (spread.low, spread.high))
        known = Interval.of(low, high)
    tokens = Estimate(value=run.tokens_per_s * (1.0 + gain.value), interval=known)
    return Policy(tokens_per_s=tokens, gain=gain, **more)  # type: ignore[arg-type]


HELD_OUT = 0.05
"""Relative error of the prediction of held-out steps above which no policy is called better."""


def threshold_words(found: Sequence[Policy], held_out: float | None) -> str:
    """Return in words what a confidence threshold would gain, or that it cannot; "" without
    thresholds. `held_out` is that of the advice."""
    known = [one for one in found if one.threshold is not None]
    if not known:
        return ""
    best = max(known, key=lambda one: one.gain.value)
    spreads = [one.gain.interval for one in known]
    spread, gain = best.gain.interval, f"{100 * best.gain.value:+.0f} %"
    if spread is not None:
        gain = f"{gain} ({100 * spread.low:+.0f} to {100 * spread.high:+.0f} %)"
    most = next((100 * one.gain.value for one in found if one.name == ORACLE), 0.0)
    about = (
        f"{best.name} does best, {gain}, with {best.verified:.1f} draft tokens verified a round; "
        f"verifying only what is accepted would give {most:+.0f} %"
    )
    if held_out is not None and held_out > HELD_OUT:
        about = f"step times of one half of the run miss the other's by {percent(held_out)}"
    elif spread is not None and spread.low > WORTH:
        return f"a confidence threshold gains: {about}"
    elif all(one is not None and one.high < WORTH for one in spreads):
        return f"no confidence threshold can gain {percent(WORTH)} or more: {about}"
    return f"whether a confidence threshold gains cannot be told: {about}"
