"""Answers of Prometheus' query API: a range (`/api/v1/query_range`) or an instant of counters.

Source: prometheus.io/docs/prometheus/latest/querying/api, "matrix" and "vector". A counter's
increase is the sum of its steps up; after a fall it counts from 0, as in Prometheus' increase(),
without its extrapolation to the ends of the range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from driftscope.boundary.bounds import MAX_COUNT, MAX_LIST, MAX_METRIC_SAMPLES, MAX_UNIX_S
from driftscope.ingest.counter_window import over
from driftscope.ingest.fields import BadFigureError, inner, objects
from driftscope.ingest.figures import SINCE_START, Figures
from driftscope.ingest.page_figures import figures_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile
from driftscope.telemetry.collect.engine_metrics import ENGINES, EngineMetrics
from driftscope.telemetry.watch.engine_page import metrics_of, page_of_samples
from driftscope.telemetry.watch.page_samples import BadPageError, Sample

_NAME = "__name__"
_RANGE, _INSTANT = "matrix", "vector"
_NAMES = frozenset(name for metrics in ENGINES.values() for name in metrics.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One series of an answer, its values in order of time."""

    name: str
    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


def _recognises(file: ResultFile) -> bool:
    data = inner(file.fields, "data")
    return "status" in file.fields and data.get("resultType") in (_RANGE, _INSTANT)


def _read(file: ResultFile) -> Iterator[Figures]:
    data = inner(file.fields, "data")
    ranged = data.get("resultType") == _RANGE
    every = [_series(each, ranged=ranged) for each in _results(data)]
    series = [each for each in every if each.name in _NAMES and each.values]
    if not series:
        raise BadFigureError(
            "no series of an engine that speculates; query the counters themselves, such as "
            '{__name__=~"vllm:.+"}, because rate() and increase() drop their names'
        )
    try:
        yield _figures(series, ranged=ranged)
    except BadPageError as error:
        raise BadFigureError(str(error)) from error


def _results(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    results = objects(data, "result")
    if len(results) > MAX_METRIC_SAMPLES:
        raise BadFigureError(f"more than {MAX_METRIC_SAMPLES:,} series")
    return results


def _series(result: Mapping[str, Any], *, ranged: bool) -> _Series:
    metric = inner(result, "metric")
    labels = {str(name): str(value) for name, value in metric.items() if name != _NAME}
    name = str(metric.get(_NAME, ""))
    pairs = result.get("values") if ranged else [result.get("value")]
    if name not in _NAMES:
        return _Series(name=name, labels=labels, times=(), values=())
    if not isinstance(pairs, list) or len(pairs) > MAX_LIST:
        raise BadFigureError(f"{name} has no list of values")
    points = [_point(name, pair) for pair in pairs]
    times = tuple(when for when, _ in points)
    if any(b <= a for a, b in pairwise(times)):
        raise BadFigureError(f"{name} has times that do not ascend")
    return _Series(name=name, labels=labels, times=times, values=tuple(v for _, v in points))


def _point(name: str, pair: object) -> tuple[float, float]:
    """Return time and value of `[time, "value"]`."""
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
        raise BadFigureError(f"{name} has a value that is not [time, text]")
    try:
        when, value = float(pair[0]), float(pair[1])
    except (TypeError, ValueError):
        raise BadFigureError(f"{name} has {str(pair)[:40]}, not a time and a number") from None
    if not (0 <= when <= MAX_UNIX_S and math.isfinite(value) and abs(value) <= MAX_COUNT):
        raise BadFigureError(f"{name} has {str(pair)[:40]}, outside the range of counters")
    return when, value


def _figures(series: Sequence[_Series], *, ranged: bool) -> Figures:
    found = metrics_of(
        lambda metrics: (
            _sample(metrics, each, ranged=ranged) for each in series if each.name in metrics.names
        )
    )
    if found is None:
        raise BadPageError("no series of speculation; its counters hold spec_decode in their names")
    metrics, samples = found
    page = page_of_samples(metrics, samples)
    if not ranged:
        said = f"the series are {metrics.title}'s; counts are since the server's start"
        return figures_of(page, SINCE_START, said)
    mine = [each for each in series if each.name in metrics.names]
    resets = max(over(metrics, each.name, each.values)[1] for each in mine)
    return figures_of(page, _period(mine), *_words(metrics, resets))


def _sample(metrics: EngineMetrics, series: _Series, *, ranged: bool) -> Sample:
    grown = over(metrics, series.name, series.values)[0] if ranged else series.values[-1]
    return Sample(name=series.name, labels=series.labels, value=grown)


def _words(metrics: EngineMetrics, resets: int) -> Iterator[str]:
    yield f"figures are the increase of {metrics.title}'s counters over the range"
    yield "a series that begins within the range counts from its first value"
    if resets:
        yield (
            f"counters began again at 0 {resets} time{'s' if resets > 1 else ''}: the server "
            "restarted, and what it counted between its last scrape and the restart is lost"
        )


def _period(series: Iterable[_Series]) -> str:
    times = [when for each in series for when in each.times]
    begin, end = (datetime.fromtimestamp(when, UTC) for when in (min(times), max(times)))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"


READER = Reader(
    name="prometheus-range",
    title="Prometheus query API: counters over a range, or at an instant",
    gives="as prometheus, for the range asked for; restarts are noticed",
    lacks="intervals; counters between the last scrape before a restart and the restart",
    recognises=_recognises,
    read=_read,
)
