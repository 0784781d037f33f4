"""Tokens per round and time per output token for every K, measured or implied by what ran.

Likewise what another policy would have served on recorded rounds: a threshold on the drafter's
confidence, up to which drafts are verified, and the bound of all trimming, only what is accepted.
K for all batches, by batch and by context is `driftscope.analysis.advice`.

Tokens per round under a threshold have the two assumptions of `TrimmedAt` as bounds. What fewer
tokens to verify cost is known only from steps that had fewer: with one K, of which the tokens go
with the batch size, no curve tells the two apart. Policies are therefore tried only where steps of
a smaller K, or without speculation, were measured, too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from driftscope.analysis.cost import MEASURED_SHARE, CostModel, Span, StepCell
from driftscope.analysis.figures.calibration import TrimmedAt
from driftscope.analysis.figures.results import LengthAtK
from driftscope.analysis.number_words import ks_of, number, percent
from driftscope.analysis.statistics.intervals import Z95, Estimate, Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import mean_length_of

CUT_OFF_BY = 0.02
"""Relative error that the acceptance length at a K that did not run may have beside its interval:
rounds cut anew were off by up to 1.3 % in simulations and 1.2 % in a real vLLM (`make calibration`,
`make prediction`)."""
DIFFERS_BY = 0.05
"""Relative difference of acceptance lengths from which a warning is given, if their intervals do
not overlap either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLength:
    """Tokens per round with one K."""

    value: float
    error: float = 0.0
    """Relative standard error; infinite if it is not known."""
    bias: float = 0.0
    """Largest relative error beside it; 0 where this K ran."""


ONE_TOKEN = RoundLength(value=1.0)
"""Tokens per round without speculation, or of a drafter of which nothing is accepted."""


def round_lengths(run: RunSummary, others: Sequence[RunSummary] = ()) -> tuple[RoundLength, ...]:
    """Return tokens per round for K = 0 .. the largest that ran. For each K the run with the
    nearest K that is not smaller counts; of equal ones, the first."""
    runs = [run, *(other for other in others if not other.mixed)]
    largest = max(run.k for run in runs)
    sources = [min((r for r in runs if r.k >= k), key=lambda r: r.k) for k in range(1, largest + 1)]
    return (
        ONE_TOKEN,
        *(
            length_at(
                k,
                source.acceptance.marginal,
                source.acceptance.marginal_interval,
                source.lengths_by_k,
            )
            for k, source in enumerate(sources, start=1)
        ),
    )


def length_at(
    k: int,
    marginal: Sequence[float],
    intervals: Sequence[Interval | None] | None = None,
    lengths: Sequence[LengthAtK] = (),
) -> RoundLength:
    """Return tokens per round for K = `k` from a run that drafted len(`marginal`) tokens.

    For a smaller K there are two estimates, each too low under the other's assumption: chains cut
    off at K, and rounds cut anew (`lengths`, see `driftscope.analysis.summary.computation`). The
    larger one counts. A rate without an interval may have any value.
    """
    rates = np.nan_to_num(np.array(marginal[:k]))
    anew = next((length.mean_length for length in lengths if length.k == k), 0.0)
    value = max(float(mean_length_of(rates.tolist())), anew)
    known = (intervals or ())[:k]
    sure = len(known) == k and all(known)
    # Rounds that are hard at one depth are hard at the next: the rates move together.
    error = (
        sum((interval.high - interval.low) / (2 * Z95) for interval in known if interval) / value
    )
    return RoundLength(
        value=value,
        error=error if sure else math.inf,
        bias=CUT_OFF_BY if 0 < k < len(marginal) else 0.0,
    )


def possible_growth(run: RunSummary) -> float:
    """Return the largest relative growth of the acceptance length by one more depth: a token there
    is accepted in no more rounds than one at the last depth is."""
    spread = run.acceptance.marginal_interval
    last = run.acceptance.marginal[-1] if spread is None or spread[-1] is None else spread[-1].high
    return (last if math.isfinite(last) else 1.0) / run.acceptance.mean_length + CUT_OFF_BY


def length_warnings(run: RunSummary, others: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return warnings about acceptance that does not depend on K alone."""
    found = [_by_batch(run), *(_unlike(run, other) for other in others)]
    return tuple(warning for warning in found if warning is not None)


def _by_batch(run: RunSummary) -> str | None:
    known = [(g, g.mean_length_interval) for g in run.groups.batch if g.mean_length_interval]
    if len(known) < 2:
        return None
    (least, low), (most, high) = (
        pick(known, key=lambda g: g[0].mean_length) for pick in (min, max)
    )
    if not _disjoint(low, high) or most.mean_length < least.mean_length * (1 + DIFFERS_BY):
        return None
    return (
        f"the acceptance length differs by batch size, from {number(least.mean_length)} in batches "
        f"of {least.name} to {number(most.mean_length)} in batches of {most.name}, but one length "
        "is used for all batch sizes"
    )


def _unlike(run: RunSummary, other: RunSummary) -> str | None:
    """Warn if a run's acceptance is not what the first run's rounds imply for its K."""
    if other.mixed or run.mixed:
        return None
    measured = next((length for length in run.lengths_by_k if length.k == other.k), None)
    interval = other.acceptance.mean_length_interval
    if measured is None or measured.mean_length_interval is None or interval is None:
        return None
    off = other.acceptance.mean_length / measured.mean_length - 1.0
    if not _disjoint(measured.mean_length_interval, interval) or abs(off) < DIFFERS_BY:
        return None
    return (
        f"{other.label} yields {number(other.acceptance.mean_length)} tokens per round with K = "
        f"{other.k}, {percent(abs(off))} {'more' if off > 0 else 'fewer'} than the rounds of "
        f"{run.label} imply; send both the same prompts"
    )


def _disjoint(a: Interval, b: Interval) -> bool:
    return a.low > b.high or b.low > a.high


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedK:
    """K of each step of a run."""

    k: int
    """Largest K."""
    shares: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Share of the steps with each K, by batch size; {} if all steps had `k`."""

    @property
    def mixed(self) -> bool:
        """Whether steps had several K."""
        return bool(self.shares)

    @property
    def ks(self) -> tuple[int, ...]:
        """Every K, ascending; 0 is included if a schedule asked for no draft."""
        return tuple(sorted({k for by_k in self.shares.values() for k in by_k} | {self.k}))

    @property
    def words(self) -> str:
        """K in words: "K = 7", or "K = 2, 4 and 7 as served"."""
        return f"{ks_of(self.ks)} as served" if self.mixed else ks_of([self.k])

    def at(self, batch: int) -> Mapping[int, float]:
        """Return the share of each K at this batch size, or at the nearest measured one."""
        if not self.shares:
            return {self.k: 1.0}
        return self.shares[min(self.shares, key=lambda size: abs(size - batch))]


def served_of(k: int, cells: Iterable[StepCell], *, mixed: bool) -> ServedK:
    """Return how a run whose longest chain has `k` tokens was served; `mixed`: with several K."""
    if not mixed:
        return ServedK(k=k)
    steps: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for cell in cells:
        steps[cell.batch][cell.k] = steps[cell.batch].get(cell.k, 0.0) + cell.steps
    return ServedK(
        k=k,
        shares={
            batch: {number: n / sum(by_k.values()) for number, n in sorted(by_k.items())}
            for batch, by_k in sorted(steps.items())
        },
    )


WIDEST = 3.0
"""Ratio of the upper to the lower end of a time or speed, above which the prediction has no
support: two K differ in speed by far less, so a figure with a wider interval does not help to
choose. This is driftscope's own bound."""


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


def tpot_of(model: CostModel, lengths: Sequence[RoundLength], served: ServedK, batch: int) -> Span:
    """Return the time per output token at a batch size with K as served."""
    shares = served.at(batch)
    if len(shares) == 1:
        (k,) = shares
        return tpot_at(model, lengths[k], batch, k)
    error = max(lengths[k].error for k in shares)
    steps = [(share, model.step(batch, k, error)) for k, share in shares.items()]
    tokens = sum(share * lengths[k].value for k, share in shares.items())
    return scaled(summed(steps), 1.0 / tokens)


def times_at(
    model: CostModel, lengths: Sequence[RoundLength], served: ServedK, batch: int
) -> Times:
    """Return the times per output token at one batch size."""
    return Times(
        by_k=tuple(tpot_at(model, length, batch, k) for k, length in enumerate(lengths)),
        ran=tpot_of(model, lengths, served, batch),
    )


def times_over(model: CostModel, lengths: Sequence[RoundLength], served: ServedK) -> Times:
    """Return the times per output token over the batch sizes as served."""
    parts = [(weight, times_at(model, lengths, served, batch)) for batch, weight in model.mix]
    return Times(
        by_k=tuple(
            summed([(weight, part.by_k[k]) for weight, part in parts]) for k in range(len(lengths))
        ),
        ran=summed([(weight, part.ran) for weight, part in parts]),
    )


def summed(parts: Sequence[tuple[float, Span]]) -> Span:
    """Return the sum of weighted spans, all of whose ends are taken together."""
    return Span(
        value=sum(weight * span.value for weight, span in parts),
        low=sum(weight * span.low for weight, span in parts),
        high=sum(weight * span.high for weight, span in parts),
    )


def scaled(span: Span, factor: float) -> Span:
    """Return the span times a positive factor."""
    return Span(value=span.value * factor, low=span.low * factor, high=span.high * factor)


def speed_ratio(now: Span, then: Span) -> Span:
    """Return the speed with the second time over that with the first."""
    return Span(
        value=_quotient(now.value, then.value),
        low=_quotient(now.low, then.high),
        high=_quotient(now.high, then.low),
    )


def _quotient(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def estimate(span: Span) -> Estimate:
    """Return a time or speed ratio as an estimate, without interval if it is too wide."""
    value = span.value if span.value > 0 and math.isfinite(span.value) else math.nan
    known = math.isfinite(value) and span.low > 0 and span.high < WIDEST * span.low
    return Estimate(value=value, interval=Interval.between(span.low, span.high) if known else None)


def gain_of(now: Span, then: Span) -> Estimate:
    """Return the speed with the second time over that with the first, minus 1."""
    speed = estimate(speed_ratio(now, then))
    spread = speed.interval and Interval.between(
        speed.interval.low - 1.0, speed.interval.high - 1.0
    )
    return replace(speed, value=speed.value - 1.0, interval=spread)


def prediction(batch: int, weight: float, times: Times, within: Times) -> Prediction:
    """Return the prediction; `within` are the times with which speeds are compared."""
    best = min(range(len(times.by_k)), key=lambda k: times.by_k[k].value)
    return Prediction(
        batch=batch,
        weight=weight,
        tpot_s=tuple(estimate(span) for span in times.by_k),
        best_k=best,
        ran=estimate(times.ran),
        gain=gain_of(within.ran, within.by_k[best]),
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
    """Least confidence of a token that is verified; None for the bound of all."""
    verified: float
    """Draft tokens verified per round."""
    mean_length: float
    """Tokens per round."""
    tokens_per_s: Estimate
    """Output tokens per second of the busy engine; bounds where its steps were not measured."""
    gain: Estimate
    """Speed over that of the run, minus 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedK:
    """Figures of a run of one K that policies are tried on."""

    k: int
    length: RoundLength
    """Tokens per round as served."""
    trimmed: Sequence[TrimmedAt]
    tokens_per_s: float


def policies(model: CostModel, run: RecordedK) -> tuple[Policy, ...]:
    """Return the policies, the bound of all first; () if fewer tokens were not measured. `model` is
    that with which speeds within the run are compared."""
    fewer = sum(w for b, w in model.mix if any(model.cell(b, k) for k in range(run.k)))
    if fewer < MEASURED_SHARE or any(model.cell(b, run.k) is None for b in model.batches):
        return ()
    # Trimmed rounds are the same ones: what they lose is known better than what they yield.
    same = replace(run.length, error=0.0)
    now = summed([(weight, tpot_at(model, same, batch, run.k)) for batch, weight in model.mix])
    most = TrimmedAt(
        threshold=0.0,
        verified=run.length.value - 1.0,
        mean_length=run.length.value,
        mean_length_interval=None,
        off=0.0,
    )
    found = []
    for trimmed in (most, *run.trimmed):
        lost = max(1.0 - trimmed.mean_length / run.length.value, 0.0)
        off = (1.0 + trimmed.off) * math.exp(Z95 * min(run.length.error * lost, 10.0))
        then = []
        for batch, weight in model.mix:
            step = model.trimmed_step(batch, run.k, trimmed.verified)
            per_token = scaled(step, 1.0 / trimmed.mean_length)
            low, high = per_token.low / off, per_token.high * off
            then.append((weight, replace(per_token, low=low, high=high)))
        gain = gain_of(now, summed(then))
        ends = gain.interval and Interval.between(
            *(run.tokens_per_s * (1.0 + end) for end in (gain.interval.low, gain.interval.high))
        )
        found.append(
            Policy(
                name=ORACLE if trimmed is most else f"threshold {trimmed.threshold:g}",
                threshold=None if trimmed is most else trimmed.threshold,
                verified=trimmed.verified,
                mean_length=trimmed.mean_length,
                tokens_per_s=Estimate(value=run.tokens_per_s * (1.0 + gain.value), interval=ends),
                gain=gain,
            )
        )
    return tuple(found)


ORACLE = "only what is accepted"
"""Policy that verifies no token in vain, which none can: the most that trimming may gain."""
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
