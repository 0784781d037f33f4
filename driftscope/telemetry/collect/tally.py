"""Cumulative figures since the start of a process: a failed export loses nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.telemetry.collect.instruments import COUNTER, DEPTH, INSTRUMENTS, Instrument

Attributes = tuple[tuple[str, str], ...]
"""Sorted pairs, usable as a dictionary key."""
Key = tuple[str, Attributes]


def attributes(values: Mapping[str, object]) -> Attributes:
    """Return `values` as the sorted attributes of a series."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One observation and the span that it came from."""

    value: float
    time_s: float
    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One series; `value` is the value of a counter or gauge, or the sum of a histogram."""

    name: str
    attributes: Attributes
    value: float
    buckets: tuple[int, ...] = ()
    """Observations per bucket, not cumulative; () for a counter or gauge."""
    exemplar: Exemplar | None = None

    @property
    def key(self) -> Key:
        """Key that identifies the series."""
        return self.name, self.attributes

    @property
    def instrument(self) -> Instrument:
        """Metric to which the series belongs."""
        return INSTRUMENTS[self.name]

    @property
    def count(self) -> int:
        """Number of observations of a histogram."""
        return sum(self.buckets)


Snapshot = Mapping[Key, Point]


class Tally:
    """Counts and sums by series; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Key, float] = {}
        self._buckets: dict[Key, NDArray[np.int64]] = {}
        self._depths: dict[Key, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def add(self, instrument: Instrument, amount: float, **by: object) -> None:
        """Add to a counter. Attributes are given by their short names, see `named`. An amount that
        is not finite is ignored, as in `observe`."""
        if not math.isfinite(amount):
            return
        key = instrument.name, named(by)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, instrument: Instrument, value: float, **by: object) -> None:
        """Set a gauge, or a counter that is counted elsewhere. A value that is not finite is
        ignored."""
        if not math.isfinite(value):
            return
        with self._lock:
            self._values[instrument.name, named(by)] = value

    def observe(self, instrument: Instrument, values: Any, **by: object) -> None:
        """Add [n] observations to a histogram; values that are not finite are ignored."""
        numbers = np.asarray(values, dtype=np.float64)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return
        key = instrument.name, named(by)
        # A bucket includes its upper bound, in OpenTelemetry as in Prometheus.
        where = np.searchsorted(instrument.bounds, numbers, side="left")
        counts = np.bincount(where, minlength=len(instrument.bounds) + 1)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + float(numbers.sum())
            self._buckets[key] = self._buckets.get(key, 0) + counts

    def observe_depths(self, instrument: Instrument, values: NDArray[Any], **by: object) -> None:
        """Add [n, K] observations to a histogram without bounds, one series per depth."""
        finite = np.isfinite(values)
        counts, sums = finite.sum(axis=0), np.where(finite, values, 0.0).sum(axis=0)
        key, k = (instrument.name, named(by)), values.shape[1]
        with self._lock:
            if key in self._depths:
                old_counts, old_sums = self._depths[key]
                counts, sums = _sum(old_counts, counts, k), _sum(old_sums, sums, k)
            self._depths[key] = counts.astype(np.int64), sums.astype(np.float64)

    def snapshot(self) -> dict[Key, Point]:
        """Return every series with its current value."""
        with self._lock:
            values, buckets = dict(self._values), dict(self._buckets)
            depths = dict(self._depths)
        points = [
            Point(
                name=key[0],
                attributes=key[1],
                value=value,
                buckets=tuple(buckets[key].tolist()) if key in buckets else (),
            )
            for key, value in values.items()
        ]
        for key, (counts, sums) in depths.items():
            points += _by_depth(key, counts, sums)
        return {point.key: point for point in points}


def _by_depth(key: Key, counts: NDArray[np.int64], sums: NDArray[np.float64]) -> Iterable[Point]:
    name, others = key
    for depth, (count, total) in enumerate(zip(counts.tolist(), sums.tolist(), strict=True), 1):
        if count:
            where = attributes({**dict(others), DEPTH: depth})
            yield Point(name=name, attributes=where, value=total, buckets=(count,))


def _sum(old: NDArray[Any], new: NDArray[Any], k: int) -> NDArray[Any]:
    """Add two arrays by depth, which may differ in length."""
    width = max(len(old), k)
    return np.asarray(np.pad(old, (0, width - len(old))) + np.pad(new, (0, width - k)))


def named(by: Mapping[str, object]) -> Attributes:
    """Translate short attribute names, such as depth=3, into full ones."""
    return attributes({_LONG[name]: value for name, value in by.items()})


_LONG = {
    name.rpartition(".")[2]: name
    for instrument in INSTRUMENTS.values()
    for name in instrument.attributes
    if name.startswith("driftscope.")
} | {"operation": "gen_ai.operation.name", "provider": "gen_ai.provider.name"}


def merged(snapshots: Iterable[Snapshot]) -> dict[Key, Point]:
    """Merge the processes of one engine. Counts and sums are added; a gauge is that of the last."""
    out: dict[Key, Point] = {}
    for snapshot in snapshots:
        for key, point in snapshot.items():
            adds = key in out and (point.buckets or point.instrument.kind == COUNTER)
            out[key] = _added(out[key], point) if adds else point
    return out


def _added(a: Point, b: Point, sign: int = 1) -> Point:
    buckets = tuple(x + sign * y for x, y in zip(a.buckets, b.buckets, strict=True))
    return replace(a, value=a.value + sign * b.value, buckets=buckets)


def difference(now: Snapshot, before: Snapshot) -> dict[Key, Point]:
    """Return the increase since `before`; gauges keep their current value."""
    out = {}
    for key, point in now.items():
        counts = point.buckets or point.instrument.kind == COUNTER
        out[key] = _added(point, before[key], -1) if counts and key in before else point
    return out


def to_rows(snapshot: Snapshot) -> list[list[Any]]:
    """Return the points as plain lists for JSON, without exemplars."""
    return [[p.name, dict(p.attributes), p.value, list(p.buckets)] for p in snapshot.values()]


def from_rows(rows: Sequence[Sequence[Any]]) -> dict[Key, Point]:
    """Return the points written by `to_rows`, without metrics that this version does not know.

    Raises TypeError or ValueError for malformed rows.
    """
    points = [
        Point(
            name=str(name),
            attributes=attributes(given),
            value=_number(value),
            buckets=tuple(int(count) for count in buckets),
        )
        for name, given, value, buckets in rows
        if name in INSTRUMENTS
    ]
    return {point.key: point for point in points}


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number
