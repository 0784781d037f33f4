"""A K for each range of batch sizes, among those that were measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftscope.analysis.cost.model import CostModel, Span
from driftscope.analysis.cost.predict import Estimate, gain_of, summed, tpot_at, tpot_of
from driftscope.analysis.cost.round_lengths import RoundLength
from driftscope.analysis.cost.served import Served
from driftscope.analysis.cost.vllm_options import Range

SAME_K_WITHIN = 0.01
"""Largest relative cost at which a batch size keeps its smaller neighbour's K: a schedule of many
ranges for gains below any measurement helps nobody."""
GAINS_AT_LEAST = 0.02
"""Lower end of the gain of a schedule from which it is suggested: it has to be kept up to date when
the server changes. This is driftscope's own bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Fastest measured K by range of batch sizes."""

    ranges: tuple[Range, ...]
    """A range extends to the start of the next one; () if no K was measured."""
    gain: Estimate
    """Speed over what it is compared with, minus 1."""


def schedule_of(
    model: CostModel, lengths: Sequence[RoundLength], served: Served, single: int | None
) -> Schedule:
    """Return the schedule; it is compared with the K `single`, or with K as served in a run of
    several K or without a single one.

    Batch sizes of which both have the same K cancel out: only the others add to the interval.
    """
    single = None if served.mixed else single
    starts: list[tuple[int, int]] = []
    now, then = [], []
    for batch, weight in model.mix:
        times = {
            k: tpot_at(model, length, batch, k)
            for k, length in enumerate(lengths)
            if model.cell(batch, k)
        }
        best = _best(times, starts[-1][1] if starts else None)
        if not starts or starts[-1][1] != best:
            starts.append((batch if starts else 1, best))
        other = (
            tpot_of(model, lengths, served, batch)
            if single is None
            else tpot_at(model, lengths[single], batch, single)
        )
        same = (list(served.at(batch)) if single is None else [single]) == [best]
        now.append((weight, _exact(other) if same else other))
        then.append((weight, _exact(other) if same else times[best]))
    return Schedule(
        ranges=_ranges(starts, model.batches[-1]), gain=gain_of(summed(now), summed(then))
    )


def _best(times: Mapping[int, Span], before: int | None) -> int:
    """Return the fastest K, or that of the batch size before if it is as fast."""
    best = min(times, key=lambda k: times[k].value)
    kept = None if before is None else times.get(before)
    if before is not None and kept and kept.value <= times[best].value * (1 + SAME_K_WITHIN):
        return before
    return best


def _exact(span: Span) -> Span:
    return Span(value=span.value, low=span.value, high=span.value)


def _ranges(starts: Sequence[tuple[int, int]], last: int) -> tuple[Range, ...]:
    ends = [first - 1 for first, _ in starts[1:]] + [last]
    return tuple((first, end, k) for (first, k), end in zip(starts, ends, strict=True))
