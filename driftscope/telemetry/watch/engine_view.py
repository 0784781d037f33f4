"""Summarise an engine for display, from two snapshots of its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from driftscope.metrics.acceptance import mean_length, running_product
from driftscope.metrics.fallback import UNKNOWN
from driftscope.metrics.latency import StepCost, speedup
from driftscope.metrics.overhead import all_in, cost_of
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.instruments import CLASS, DEPTH, PLACE, REASON, Instrument
from driftscope.telemetry.collect.tally import Point, Snapshot, difference

CLASSES = ("sink", "prompt", "generated", "self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Figures of one depth; None where nothing was measured or the quantity does not apply."""

    accepted: float | None
    """Marginal acceptance over the rounds that drafted the depth."""
    masses: dict[str, float | None]
    """Attention masses by class, see CLASSES."""
    fed_rms: float | None
    top1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Figures of an engine over a period."""

    rounds: int
    requests: int
    chains: int
    k: int
    length: float | None
    speedup: float | None
    tpot_s: float | None
    ttft_s: float | None
    draft_s: float | None
    verify_s: float | None
    rejected: float | None
    """Share of rejected rounds in all decode steps."""
    undrafted: dict[str, float]
    """Shares of undrafted steps in all decode steps, by reason."""
    rate: float | None
    overhead: float | None
    """Cost of the probe that a budget bounds; the largest of the engine's workers."""
    all_in: float | None
    """Cost of the probe, all in, since the start."""
    down: str
    """Kind of the reason why nothing is recorded; empty if the engine records."""
    growth: float | None
    """Mean growth of the hidden state over a chain; None without chains that have it."""
    dropped: int
    """Rows dropped since the start."""
    depths: tuple[Depth, ...]


class _Figures:
    """Sums over series."""

    def __init__(self, points: Snapshot) -> None:
        self._points: dict[tuple[str, str | None], list[tuple[Point, dict[str, str]]]] = {}
        """Points by name, and by name and depth."""
        for point in points.values():
            own = dict(point.attributes)
            for depth in {None, own.get(DEPTH)}:
                self._points.setdefault((point.name, depth), []).append((point, own))

    def total(self, instrument: Instrument, **by: str) -> float:
        return sum(p.value for p in self._of(instrument, by))

    def has(self, instrument: Instrument) -> bool:
        return (instrument.name, None) in self._points

    def mean(self, instrument: Instrument, **by: str) -> float | None:
        points = self._of(instrument, by)
        count = sum(p.count for p in points)
        return sum(p.value for p in points) / count if count else None

    def values(self, instrument: Instrument, attribute: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for point in self._of(instrument, {}):
            key = dict(point.attributes).get(attribute, UNKNOWN)
            totals[key] = totals.get(key, 0.0) + point.value
        return dict(sorted(totals.items()))

    def _of(self, instrument: Instrument, by: dict[str, str]) -> list[Point]:
        points = self._points.get((instrument.name, by.get(DEPTH)), ())
        return [point for point, own in points if by.items() <= own.items()]


def view(now: Snapshot, before: Snapshot | None = None) -> View:
    """Return the figures since `before`, or since the start; gauges have their current value."""
    new, whole = _Figures(difference(now, before or {})), _Figures(now)
    rounds, undrafted = new.total(i.ROUNDS), new.values(i.UNDRAFTED_STEPS, REASON)
    steps = rounds + sum(undrafted.values())
    counted = rounds and new.has(i.ACCEPTED)
    length = mean_length(new.total(i.ACCEPTED), rounds) if counted else None
    rejected = (
        new.total(i.REJECTED_ROUNDS) / steps if steps and new.has(i.REJECTED_ROUNDS) else None
    )
    draft_s, verify_s = new.mean(i.DRAFT_TIME), new.mean(i.VERIFY_TIME)
    k = int(whole.total(i.CONFIGURED_K))
    return View(
        rounds=int(rounds),
        requests=int(new.total(i.REQUESTS)),
        chains=int(new.total(i.CHAINS)),
        k=k,
        length=length,
        speedup=_speedup(length, draft_s, verify_s),
        tpot_s=new.mean(i.TPOT),
        ttft_s=new.mean(i.TTFT),
        draft_s=draft_s,
        verify_s=verify_s,
        rejected=rejected,
        undrafted={reason: n / steps for reason, n in undrafted.items() if steps and n},
        rate=max(whole.values(i.RATE, i.SOURCE).values(), default=None),
        overhead=max(whole.values(i.PROBE_OVERHEAD, i.SOURCE).values(), default=None),
        growth=new.mean(i.GROWTH),
        all_in=_all_in(whole),
        down=_down(whole),
        dropped=int(whole.total(i.DROPPED)),
        depths=tuple(
            _depth(new, str(n), rate) for n, rate in enumerate(_marginal(new, k, rounds), 1)
        ),
    )


def _all_in(whole: _Figures) -> float | None:
    """Return the probe's cost: each process's hooks and writer are one figure here, and the time of
    all model steps another."""
    step_s = whole.total(i.STEP_TIME)
    by_source = whole.values(i.PROBE_TIME, i.SOURCE)
    costs = [cost_of(f"{source}-0", taken_s, 0.0) for source, taken_s in by_source.items()]
    return all_in(replace(each, step_s=step_s if each.worker else 0.0) for each in costs)


def _down(whole: _Figures) -> str:
    up = whole.values(i.UP, REASON)
    return "" if any(up.values()) else next(iter(up), "")


def _marginal(new: _Figures, k: int, rounds: float) -> list[float | None]:
    """Return the marginal acceptance by depth, [k], from risk sets; None where no round could be
    accepted at a depth. A server with an older driftscope reports no risk sets; its rates are per
    round, as vLLM counts them."""
    reached, at_risk = (
        [new.total(each, **{DEPTH: str(n)}) for n in range(1, k + 1)]
        for each in (i.REACHED, i.AT_RISK)
    )
    if rounds and not any(at_risk):
        return [n / rounds for n in reached]
    reached = [min(n, could) for n, could in zip(reached, at_risk, strict=True)]
    rates = running_product(reached, at_risk).tolist()
    return [rate if math.isfinite(rate) else None for rate in rates]


def _depth(new: _Figures, depth: str, accepted: float | None) -> Depth:
    at = {DEPTH: depth}
    return Depth(
        accepted=accepted,
        masses={name: new.mean(i.MASS, **at, **{CLASS: name}) for name in CLASSES},
        fed_rms=new.mean(i.RMS, **at, **{PLACE: "fed"}),
        top1=new.mean(i.TOP1, **at),
    )


def _speedup(length: float | None, draft_s: float | None, verify_s: float | None) -> float | None:
    if length is None or draft_s is None or not verify_s:
        return None
    return speedup(length, StepCost(step_s=draft_s + verify_s, draft_s=draft_s))
