"""Choice of K from measured and bounded times, and the K to measure next."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from driftscope.analysis.cost.model import Span
from driftscope.analysis.cost.predict import Estimate, Times, gain_of, speed_ratio

WORTH_SAYING = 0.05
"""Gain in speed below which no other K is suggested, and largest regret of a K that is kept: the
speed that could still be won with another K. This is driftscope's own bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """K to measure next."""

    k: int
    guess: float | None
    """Guessed gain over the K that ran; None for a K above all that ran, of which nothing is
    known but a bound, or if the guess is no gain."""
    most: float | None
    """Largest possible gain over the K that ran; None if it has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Conclusion from the step times about K."""

    k: int | None
    """K to serve: the fastest that was measured, or one whose regret is bounded to WORTH_SAYING.
    None if no K was."""
    measured: bool
    """Whether that K was measured."""
    regret: float | None
    """Largest possible gain of any other K over it; None if it has no bound."""
    gain: Estimate | None
    """Speed with it over that of the run, minus 1; None without a K."""
    next: Next | None
    """K to measure next; None if the choice is settled: both neighbours are measured and slower,
    if the time has one minimum over K, or the regret is at most WORTH_SAYING."""


def choose(
    times: Times,
    order: Times,
    measured: Collection[int],
    *,
    ran: int | None,
    growth: float,
) -> Choice:
    """Return the choice; `times` are over the batch sizes as served, and `order` are those times
    with runs evened out, which decide which K is the faster one.

    `measured` are the K with measured times, `ran` is the K of the run (None: several), and
    `growth` is the largest relative gain in tokens per round of one more depth than the largest K.
    """
    by_k = [
        replace(each, value=even.value) for each, even in zip(times.by_k, order.by_k, strict=True)
    ]
    fastest = min(measured, key=lambda k: by_k[k].value, default=None)
    bounded = [k for k in range(len(by_k)) if regret_of(k, by_k, growth) <= WORTH_SAYING]
    if fastest is None and not bounded:
        guess = min(range(len(by_k)), key=lambda k: by_k[k].value)
        step = None if guess == ran else _next(guess, times, ran, None, growth)
        return Choice(k=None, measured=False, regret=None, gain=None, next=step)
    k = min(bounded, key=lambda each: by_k[each].value) if bounded else fastest
    assert k is not None  # noqa: S101  one of the two is not empty
    regret = regret_of(k, by_k, growth)
    settled = regret <= WORTH_SAYING or not _open(k, by_k, measured, growth)
    return Choice(
        k=k,
        measured=k in measured,
        regret=regret if math.isfinite(regret) else None,
        gain=gain_of(times.ran, times.by_k[k]),
        next=None
        if settled
        else _to_measure(k, replace(times, by_k=tuple(by_k)), measured, ran, growth),
    )


def regret_of(k: int, by_k: Sequence[Span], growth: float) -> float:
    """Return the largest possible gain over K = `k`; infinite without a bound."""
    others = [each.low for j, each in enumerate(by_k) if j != k]
    least = min(others, default=math.inf)
    beyond = growth if k == len(by_k) - 1 else 0.0
    if not least > 0:
        return math.inf
    return max(by_k[k].high / least - 1.0, beyond)


def _open(k: int, by_k: Sequence[Span], measured: Collection[int], growth: float) -> list[int]:
    """Return the neighbours of K = `k` that may be faster, for all that is known."""
    near = [k - 1] if k else []
    near += [k + 1] if k + 1 < len(by_k) or growth > WORTH_SAYING else []
    return [j for j in near if j not in measured and not _slower(j, k, by_k)]


def _slower(j: int, k: int, by_k: Sequence[Span]) -> bool:
    return j < len(by_k) and by_k[j].low >= by_k[k].value


def _to_measure(
    best: int, times: Times, measured: Collection[int], ran: int | None, growth: float
) -> Next | None:
    """Return the guessed fastest K if it was not measured, else the better unmeasured neighbour of
    the fastest that was."""
    by_k = times.by_k
    guess = min(range(len(by_k)), key=lambda k: by_k[k].value)
    if guess in measured:
        near = _open(best, by_k, measured, growth)
        guess = min(near, key=lambda k: by_k[k].value if k < len(by_k) else by_k[best].value)
    return _next(guess, times, ran, best, growth)


def _next(k: int, times: Times, ran: int | None, best: int | None, growth: float) -> Next:
    by_k = times.by_k
    if k < len(by_k):
        ratio = speed_ratio(times.ran, by_k[k])
        guess = ratio.value - 1.0
        return Next(k=k, guess=guess if guess > 0 else None, most=_finite(ratio.high - 1.0))
    if best is None or best == ran:
        return Next(k=k, guess=None, most=growth)
    over_best = speed_ratio(times.ran, by_k[best]).high
    return Next(k=k, guess=None, most=_finite(over_best * (1 + growth) - 1.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
