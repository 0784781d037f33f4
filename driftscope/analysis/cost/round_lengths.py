"""Tokens per round for every K: measured where it ran, cut anew from a longer chain elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.cost.model import Z95
from driftscope.analysis.number_words import number, percent
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.length_by_k import LengthAtK
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
    runs = [run, *(each for each in others if not each.mixed)]
    largest = max(each.k for each in runs)
    sources = [min((r for r in runs if r.k >= k), key=lambda r: r.k) for k in range(1, largest + 1)]
    return (ONE_TOKEN, *(_at(source, k) for k, source in enumerate(sources, start=1)))


def length_at(
    k: int,
    marginal: Sequence[float],
    intervals: Sequence[Interval | None] | None = None,
    lengths: Sequence[LengthAtK] = (),
) -> RoundLength:
    """Return tokens per round for K = `k` from a run that drafted len(`marginal`) tokens.

    For a smaller K there are two estimates, each too low under the other's assumption: chains cut
    off at K, and rounds cut anew (`lengths`, see `driftscope.analysis.summary.length_by_k`). The
    larger one counts. A rate without an interval may have any value.
    """
    rates = np.nan_to_num(np.array(marginal[:k]))
    anew = next((each.mean_length for each in lengths if each.k == k), 0.0)
    value = max(float(mean_length_of(rates.tolist())), anew)
    known = (intervals or ())[:k]
    sure = len(known) == k and all(known)
    # Rounds that are hard at one depth are hard at the next: the rates move together.
    error = sum((each.high - each.low) / (2 * Z95) for each in known if each) / value
    return RoundLength(
        value=value,
        error=error if sure else math.inf,
        bias=CUT_OFF_BY if 0 < k < len(marginal) else 0.0,
    )


def _at(run: RunSummary, k: int) -> RoundLength:
    return length_at(k, run.acceptance.marginal, run.acceptance.marginal_interval, run.lengths_by_k)


def possible_growth(run: RunSummary) -> float:
    """Return the largest relative growth of the acceptance length by one more depth: a token there
    is accepted in no more rounds than one at the last depth is."""
    spread = run.acceptance.marginal_interval
    last = run.acceptance.marginal[-1] if spread is None or spread[-1] is None else spread[-1].high
    return (last if math.isfinite(last) else 1.0) / run.acceptance.mean_length + CUT_OFF_BY


def length_warnings(run: RunSummary, others: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return warnings about acceptance that does not depend on K alone."""
    found = [_by_batch(run), *(_unlike(run, each) for each in others)]
    return tuple(each for each in found if each is not None)


def _by_batch(run: RunSummary) -> str | None:
    known = [(g, g.mean_length_interval) for g in run.groups.batch if g.mean_length_interval]
    if len(known) < 2:
        return None
    (least, low), (most, high) = (
        pick(known, key=lambda g: g[0].mean_length) for pick in (min, max)
    )
    if not _apart(low, high) or most.mean_length < least.mean_length * (1 + DIFFERS_BY):
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
    mine = next((each for each in run.lengths_by_k if each.k == other.k), None)
    there = other.acceptance.mean_length_interval
    if mine is None or mine.interval is None or there is None:
        return None
    off = other.acceptance.mean_length / mine.mean_length - 1.0
    if not _apart(mine.interval, there) or abs(off) < DIFFERS_BY:
        return None
    return (
        f"{other.label} yields {number(other.acceptance.mean_length)} tokens per round with K = "
        f"{other.k}, {percent(abs(off))} {'more' if off > 0 else 'fewer'} than the rounds of "
        f"{run.label} imply; send both the same prompts"
    )


def _apart(a: Interval, b: Interval) -> bool:
    return a.low > b.high or b.low > a.high
