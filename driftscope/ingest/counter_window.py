"""Increase of counters between two scrapes of one server, with restarts noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from driftscope.telemetry.collect.engine_metrics import EngineMetrics
from driftscope.telemetry.watch.page_samples import Sample

Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels of a series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Counters as they increased over a window, and gauges as they are at its end."""

    samples: tuple[Sample, ...]
    resets: int
    """Number of times that the counters began again at 0."""


def between(
    metrics: EngineMetrics, before: Iterable[Sample], after: Iterable[Sample], *, restarted: bool
) -> Window:
    """Return the increase of counters between two pages of one server.

    If any counter fell or is gone, the server has restarted, and all of its counters are taken as
    they are after: they cover the time since the restart. `restarted` says that this is known.
    """
    old, new = _by_series(before), _by_series(after)
    reset = restarted or any(
        series[0] != metrics.length and (series not in new or new[series].value < sample.value)
        for series, sample in old.items()
    )
    grown = [_grown(metrics, sample, None if reset else old.get(s)) for s, sample in new.items()]
    return Window(samples=tuple(grown), resets=int(reset))


def over(metrics: EngineMetrics, name: str, values: Sequence[float]) -> tuple[float, int]:
    """Return the increase of one series over its values in time, [n], n at least 1, and how often
    it began again at 0; a gauge has its last value."""
    if name == metrics.length:
        return values[-1], 0
    steps = list(pairwise(values))
    falls = sum(b < a for a, b in steps)
    return sum(b - a if b >= a else b for a, b in steps), falls


def _grown(metrics: EngineMetrics, sample: Sample, old: Sample | None) -> Sample:
    if old is None or sample.name == metrics.length:
        return sample
    return replace(sample, value=sample.value - old.value)


def _by_series(samples: Iterable[Sample]) -> Mapping[Series, Sample]:
    return {(each.name, frozenset(each.labels.items())): each for each in samples}
