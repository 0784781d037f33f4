"""Read an engine's own metrics from its Prometheus page, as points of driftscope's instruments.

Counters become the counters of the same meaning, so that a window of time is their difference. An
engine that publishes a gauge in place of counters has no window: its value is that of the engine's
own last log interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from driftscope.boundary.bounds import MAX_K
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.engine_metrics import ENGINES, EngineMetrics
from driftscope.telemetry.collect.instruments import DEPTH, Instrument
from driftscope.telemetry.collect.tally import Key, Point, attributes
from driftscope.telemetry.watch.page_samples import BadPageError, Sample, samples_on

_RANKS = ("tp_rank", "pp_rank")
"""Labels of processes that publish the same figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """Figures of one page."""

    metrics: EngineMetrics
    points: dict[Key, Point]
    length: float | None
    """Acceptance length of the engine's last log interval, averaged over its replicas; None if the
    engine publishes counters, which say more."""


def page_of(text: str, engines: Iterable[EngineMetrics] = ENGINES.values()) -> EnginePage | None:
    """Return the figures of the first of these engines that has any on the page; None if none has.
    Raises BadPageError."""
    found = metrics_of(lambda metrics: samples_on(text, metrics.names), engines)
    return None if found is None else page_of_samples(*found)


def metrics_of(
    samples: Callable[[EngineMetrics], Iterable[Sample]],
    engines: Iterable[EngineMetrics] = ENGINES.values(),
) -> tuple[EngineMetrics, list[Sample]] | None:
    """Return the first of these engines that has a sample of speculation, with its samples; None if
    none has. Raises what `samples` raises."""
    for metrics in engines:
        mine = [each for each in samples(metrics) if _is_first_rank(each)]
        if any(each.name in metrics.of_speculation for each in mine):
            return metrics, mine
    return None


def _is_first_rank(sample: Sample) -> bool:
    return all(sample.labels.get(rank, "0") == "0" for rank in _RANKS)


def page_of_samples(metrics: EngineMetrics, samples: Sequence[Sample]) -> EnginePage:
    """Return the figures of an engine's samples; raises BadPageError."""
    totals: defaultdict[str, float] = defaultdict(float)
    by_position: defaultdict[tuple[str, int], float] = defaultdict(float)
    lengths = []
    for each in samples:
        if each.value < 0:
            raise BadPageError(f"{each.name}: {each.value:g}, less than 0")
        if each.name == metrics.length:
            lengths.append(each.value)
        elif each.name in (metrics.accepted_at, metrics.drafted_at):
            by_position[each.name, _position(each, metrics.position)] += each.value
        else:
            totals[each.name] += each.value
    points = {point.key: point for point in _points(metrics, totals, by_position)}
    known = [length for length in lengths if length >= 1.0]
    counted = metrics.accepted in totals
    length = None if counted or not known else sum(known) / len(known)
    return EnginePage(metrics=metrics, points=points, length=length)


def _position(sample: Sample, label: str) -> int:
    """Return the position of a sample, from 0."""
    text = sample.labels.get(label, "")
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < MAX_K and len(text) < 9):
        raise BadPageError(f"{sample.name}: {label} is {text[:40]!r}, not a number below {MAX_K}")
    return int(text)


def _points(
    metrics: EngineMetrics,
    totals: dict[str, float],
    by_position: dict[tuple[str, int], float],
) -> Iterator[Point]:
    positions = [at for name, at in by_position if name == metrics.accepted_at]
    k = 1 + max(positions, default=-1)
    yield _point(i.CONFIGURED_K, k)
    # An engine without a counter of rounds counts a round where it drafts the first position.
    first = by_position.get((metrics.drafted_at or "", 0))
    rounds = first if metrics.rounds is None else totals.get(metrics.rounds)
    for instrument, value in (
        (i.ROUNDS, rounds),
        (i.ACCEPTED, totals.get(metrics.accepted or "")),
        (i.REQUESTS, totals.get(metrics.requests or "")),
    ):
        if value is not None:
            yield _point(instrument, value)
    if k and rounds is not None:
        kept = by_position[metrics.accepted_at or "", 0]
        yield _point(i.REJECTED_ROUNDS, max(rounds - kept, 0.0))
    for at in range(k):
        reached = by_position.get((metrics.accepted_at or "", at), 0.0)
        yield _point(i.REACHED, reached, depth=at + 1)
    for instrument, name in ((i.TTFT, metrics.ttft), (i.TPOT, metrics.tpot)):
        if name and f"{name}_count" in totals:
            count = int(totals[f"{name}_count"])
            yield _point(instrument, totals.get(f"{name}_sum", 0.0), buckets=(count,))


def _point(
    instrument: Instrument, value: float, *, depth: int | None = None, buckets: tuple[int, ...] = ()
) -> Point:
    by = {} if depth is None else {DEPTH: depth}
    return Point(
        name=instrument.name, attributes=attributes(by), value=float(value), buckets=buckets
    )
