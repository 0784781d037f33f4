"""Readers of engines' own metrics: a page, the window between two, and Prometheus' query API."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from driftscope.analysis.log_changes import (
    INTERVAL,
    MOST_INTERVALS,
    RUNNING,
    LineAcceptance,
)
from driftscope.boundary.bounds import MAX_COUNT, MAX_LIST, MAX_METRIC_SAMPLES, MAX_UNIX_S
from driftscope.errors import UsageError
from driftscope.ingest.base import (
    LAST_INTERVAL,
    REGISTERED,
    SINCE_START,
    BadFigureError,
    Figures,
    Reader,
    ResultFile,
    changes_told,
    completed,
    inner,
    objects,
    open_result,
    reader,
)
from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import attributes
from driftscope.telemetry.prometheus import (
    ENGINES,
    BadPageError,
    EngineMetrics,
    EnginePage,
    Sample,
    engines_on,
    page_of_all,
    page_of_samples,
    samples_of_engine,
    samples_on,
    unwrapped,
)
from driftscope.telemetry.watch import mostly_undrafted, nothing_accepted, outliers, view

Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels of a series."""
_NAME = "__name__"
_RANGE, _INSTANT = "matrix", "vector"
_NAMES = frozenset(name for metrics in ENGINES.values() for name in metrics.names)
_OF_SPECULATION = frozenset(name for metrics in ENGINES.values() for name in metrics.of_speculation)
SINCE_RESTART = "from the server's restart to the second scrape"
_STARTED = "process_start_time_seconds"
"""Gauge of Prometheus' own clients: the time at which the server's process began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One series of an answer, its values in order of time."""

    name: str
    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


def counter_increase(
    metrics: EngineMetrics, name: str, values: Sequence[float]
) -> tuple[float, int]:
    """Return a counter's increase over its values in time, [n], n at least 1, and its number of
    resets; a gauge has its last value."""
    if name in metrics.gauges:
        return values[-1], 0
    steps = list(pairwise(values))
    falls = sum(b < a for a, b in steps)
    return sum(b - a if b >= a else b for a, b in steps), falls


def _by_series(samples: Iterable[Sample]) -> Mapping[Series, Sample]:
    return {(sample.name, frozenset(sample.labels.items())): sample for sample in samples}


Steps = Sequence[tuple[str, Mapping[Series, Sample]]]
"""Ends of intervals in words, and the samples of each: increases, and values of gauges."""


def figures_of(
    page: EnginePage, period: str, *assumptions: str, steps: Steps = ()
) -> Iterator[Figures]:
    """Yield the figures of an engine's counters, which cover `period`: of each replica, the worst
    first, and last of all of them."""
    parts = {
        name: _with_changes(one, _figures_of(one, period, assumptions), steps)
        for name, one in page.replicas.items()
    }
    words = outliers(
        {
            name: (figures.mean_length, None if page.length else figures.rounds)
            for name, figures in parts.items()
            if figures.mean_length is not None
        }
    )
    for name, figures in sorted(parts.items(), key=lambda part: part[1].mean_length or math.inf):
        notes = (words[name],) if name in words else ()
        yield replace(figures, part=name, observations=(*figures.observations, *notes))
    whole = _figures_of(page, period, assumptions)
    if not parts:
        whole = _with_changes(page, whole, steps)
    dead = nothing_accepted(page.length, whole.k or 0, running=page.running)
    yield replace(
        whole,
        part=f"all {len(parts)} replicas" if parts else "",
        is_sum=bool(parts),
        observations=(*whole.observations, dead) if dead else whole.observations,
    )


def _figures_of(page: EnginePage, period: str, assumptions: tuple[str, ...]) -> Figures:
    """Return the figures of one page. A gauge of the engine's last log interval covers only that
    interval."""
    page_view = view(page.points)
    depths = [attributes({i.DEPTH: depth}) for depth in range(1, page_view.k + 1)]
    reached, drafted = (
        [page.points.get((item.name, depth)) for depth in depths]
        for item in (i.REACHED, i.VERIFIED_AT)
    )
    accepted, verified = (
        page.points.get((item.name, attributes({}))) for item in (i.ACCEPTED, i.VERIFIED)
    )
    return Figures(
        period=period if page.length is None else LAST_INTERVAL,
        k=page_view.k or None,
        requests=page_view.requests or None,
        rounds=page_view.rounds or None,
        verified=None if verified is None else int(verified.value),
        accepted=None if accepted is None else int(accepted.value),
        mean_length=page_view.length if page.length is None else page.length,
        marginal=tuple(point.value / page_view.rounds for point in reached if point) or None
        if page_view.rounds and all(reached)
        else None,
        verified_at=tuple(point.value for point in drafted if point) or None
        if all(drafted)
        else None,
        ttft_s=page_view.ttft_s,
        tpot_s=page_view.tpot_s,
        assumptions=assumptions,
        observations=tuple(filter(None, [mostly_undrafted(page)])),
    )


def _with_changes(page: EnginePage, figures: Figures, steps: Steps) -> Figures:
    """Return the figures with the changes from interval to interval, of those in which requests
    ran."""
    series = list(_by_series(page.samples))
    lines = list[LineAcceptance]()
    for when, samples in steps:
        present = [samples[one] for one in series if one in samples]
        total_page = page_of_all(page.metrics, present)
        now = completed(_figures_of(total_page, "", ()))
        if total_page.running != 0:
            lines.append(
                LineAcceptance(
                    when=when,
                    length=now.mean_length,
                    verified=now.verified if total_page.length is None else None,
                    rates=tuple(rate or 0.0 for rate in now.marginal or ()),
                    quantities={} if total_page.running is None else {RUNNING: total_page.running},
                )
            )
    return replace(figures, **changes_told(lines, INTERVAL))


def _is_prometheus_text(file: ResultFile) -> bool:
    if file.document is not None or file.lines:
        return False
    try:
        return samples_of_engine(file.text) is not None
    except BadPageError:
        return True


@reader(
    name="prometheus",
    marks=(
        ("# TYPE vllm:", "vllm:spec_decode_num_drafts"),
        ("# TYPE sglang:", "sglang:spec_accept_length"),
        ("# TYPE llamacpp:", "llamacpp:spec_decode_num_drafts"),
        ("# TYPE trtllm_", "trtllm_spec_decode_num_accepted_tokens"),
        (":spec_decode_num_drafts", "vllm:"),
    ),
    title="Prometheus page of vLLM, SGLang, TensorRT-LLM, llama.cpp or LMDeploy",
    gives="acceptance length, rates by position (not SGLang), mean times (vLLM, TensorRT-LLM)",
    lacks="intervals; one page covers the time since the server's start, two with --window the "
    "time between them",
    recognises=_is_prometheus_text,
)
def prometheus_text(file: ResultFile) -> Iterator[Figures]:
    """Read metrics pages of vLLM, SGLang, TensorRT-LLM, llama.cpp and LMDeploy: one scrape, by
    replica, the worst first.

    Sources: see `driftscope.telemetry.prometheus`.
    """

    def read(metrics: EngineMetrics, samples: list[Sample]) -> Iterator[Figures]:
        note = f"the page is {metrics.title}'s; counts are since the server's start"
        return figures_of(page_of_samples(metrics, samples), SINCE_START, note)

    yield from _by_engine(lambda metrics: samples_on(file.text, metrics.names), read)


def _by_engine(
    samples: Callable[[EngineMetrics], Iterable[Sample]],
    read: Callable[[EngineMetrics, list[Sample]], Iterable[Figures]],
) -> Iterator[Figures]:
    """Yield what `read` returns of each engine that has samples; with several, under its name."""
    try:
        found = list(engines_on(samples))
        for metrics, engine_samples in found:
            for figures in read(metrics, engine_samples):
                name = f"{metrics.title} {figures.part}".strip()
                yield replace(figures, part=name) if len(found) > 1 else figures
    except BadPageError as error:
        raise BadFigureError(str(error)) from error


def _is_prometheus_range(file: ResultFile) -> bool:
    data = inner(file.fields, "data")
    return "status" in file.fields and data.get("resultType") in (_RANGE, _INSTANT)


@reader(
    name="prometheus-range",
    marks=(("status", "data", "resultType", "__name__"),),
    title="Prometheus query API: counters over a range, or at an instant",
    gives="as prometheus, for the range asked for; restarts are noticed",
    lacks="intervals; counters between the last scrape before a restart and the restart",
    recognises=_is_prometheus_range,
)
def prometheus_range(file: ResultFile) -> Iterator[Figures]:
    """Read answers of Prometheus' query API: a range (`/api/v1/query_range`) or an instant of
    counters.

    Source: prometheus.io/docs/prometheus/latest/querying/api, "matrix" and "vector". A counter's
    increase is the sum of its steps up; after a fall it counts from 0, as in Prometheus'
    increase(), without its extrapolation to the ends of the range.
    """
    data = inner(file.fields, "data")
    ranged = data.get("resultType") == _RANGE
    every = [_series(result, ranged=ranged) for result in _results(data)]
    series = [series for series in every if series.name in _NAMES and series.values]
    if not any(one.name in _OF_SPECULATION for one in series):
        raise BadFigureError(
            "no series of an engine that speculates; query the counters themselves, such as "
            '{__name__=~"vllm:.+"}, because rate() and increase() drop their names'
        )
    yield from _figures(series, ranged=ranged)


def _results(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    results = objects(data, "result")
    if len(results) > MAX_METRIC_SAMPLES:
        raise BadFigureError(f"more than {MAX_METRIC_SAMPLES:,} series")
    return results


def _series(result: Mapping[str, Any], *, ranged: bool) -> _Series:
    metric = inner(result, "metric")
    labels = {str(name): str(value) for name, value in metric.items() if name != _NAME}
    name = unwrapped(str(metric.get(_NAME, "")))
    name = f"{name}_total" if f"{name}_total" in _NAMES else name  # as on pages
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


def _figures(series: Sequence[_Series], *, ranged: bool) -> Iterator[Figures]:
    def read(metrics: EngineMetrics, samples: list[Sample]) -> Iterator[Figures]:
        page = page_of_samples(metrics, samples)
        if not ranged:
            note = f"the series are {metrics.title}'s; counts are since the server's start"
            return figures_of(page, SINCE_START, note)
        own = [one for one in series if one.name in metrics.names]
        resets = max(counter_increase(metrics, one.name, one.values)[1] for one in own)
        words = _range_words(metrics, resets)
        return figures_of(page, _period(own), *words, steps=_steps(metrics, own))

    yield from _by_engine(
        lambda metrics: (
            _sample(metrics, one, ranged=ranged) for one in series if one.name in metrics.names
        ),
        read,
    )


def _steps(metrics: EngineMetrics, series: Sequence[_Series]) -> Steps:
    """Return what each interval of a range counts, by the end of the interval."""
    times = sorted({when for one in series for when in one.times})
    ends = times[:: -(-len(times) // MOST_INTERVALS)]
    steps: list[tuple[str, dict[Series, Sample]]] = [
        (f"{datetime.fromtimestamp(end, UTC):%m-%d %H:%M:%S}", {}) for end in ends[1:]
    ]
    for one in series:
        key = (one.name, frozenset(one.labels.items()))
        places = [bisect_right(one.times, end) for end in ends]
        for (_, samples), (first, last) in zip(steps, pairwise(places), strict=True):
            values = one.values[max(first - 1, 0) : last]
            if last > first and (first or one.name in metrics.gauges):
                grown = counter_increase(metrics, one.name, values)[0]
                samples[key] = Sample(name=one.name, labels=one.labels, value=grown)
    return steps


def _sample(metrics: EngineMetrics, series: _Series, *, ranged: bool) -> Sample:
    grown = (
        counter_increase(metrics, series.name, series.values)[0] if ranged else series.values[-1]
    )
    return Sample(name=series.name, labels=series.labels, value=grown)


def _range_words(metrics: EngineMetrics, resets: int) -> Iterator[str]:
    yield f"figures are the increase of {metrics.title}'s counters over the range"
    yield "a series that begins within the range counts from its first value"
    if resets:
        yield (
            f"counters began again at 0 {resets} time{'s' if resets > 1 else ''}: the server "
            "restarted, and what it counted between its last scrape and the restart is lost"
        )


def _period(series: Iterable[_Series]) -> str:
    times = [when for one in series for when in one.times]
    begin, end = (datetime.fromtimestamp(when, UTC) for when in (min(times), max(times)))
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"


def two_scrapes(paths: Sequence[Path]) -> list[tuple[Path, Reader, tuple[Figures, ...]]]:
    """Return the later scrape with the figures of the time since the earlier one, as `ingest` has
    files. Raises UsageError for more or fewer than two files, and what `ingest_window` raises."""
    if len(paths) != 2:
        raise UsageError(f"--window: needs two scrapes, the earlier first, not {len(paths)}")
    return [(paths[1], *ingest_window(*paths))]


def ingest_window(before: Path, after: Path) -> tuple[Reader, tuple[Figures, ...]]:
    """Return the figures of the time between two scrapes.

    Raises UsageError for files that are no metrics pages of one engine, or between which no round
    was verified.
    """
    metrics, old, begun = _scrape(before)
    other, new, restarted = _scrape(after)
    if metrics is not other:
        raise UsageError(
            f"{before}, {after}: pages of {metrics.title} and of {other.title}; a window is the "
            "time between two scrapes of one server"
        )
    earlier, later = _by_series(old), _by_series(new)
    # If any counter fell or is gone, the server has restarted: all of them count from 0 again.
    reset = begun != restarted or any(
        name not in metrics.gauges
        and ((name, labels) not in later or later[name, labels].value < sample.value)
        for (name, labels), sample in earlier.items()
    )
    grown = [
        sample
        if reset or sample.name in metrics.gauges or series not in earlier
        else replace(sample, value=sample.value - earlier[series].value)
        for series, sample in later.items()
    ]
    try:
        page = page_of_samples(metrics, grown)
    except BadPageError as error:
        raise UsageError(f"{after}: {error}") from error
    period = SINCE_RESTART if reset else f"from {before.name} to {after.name}"
    words = _window_words(metrics, before, reset=reset)
    every = tuple(completed(figures) for figures in figures_of(page, period, words))
    if every[-1].is_empty:
        raise UsageError(
            f"{before}, {after}: no round was verified between these scrapes, of which the earlier "
            "is given first"
        )
    return REGISTERED["prometheus"], every


def _scrape(path: Path) -> tuple[EngineMetrics, list[Sample], float | None]:
    """Return a page's engine, its samples, and the time at which its process began."""
    text = open_result(path).text
    try:
        found = samples_of_engine(text)
        started = [item.value for item in samples_on(text, (_STARTED,))]
    except BadPageError as error:
        raise UsageError(f"{path}: {error}") from error
    if found is None:
        raise UsageError(f"{path}: no metrics page of an engine that speculates; save GET /metrics")
    return (*found, next(iter(started), None))


def _window_words(metrics: EngineMetrics, before: Path, *, reset: bool) -> str:
    if reset:
        return (
            f"counters of {metrics.title} began again after {before.name}: the server restarted, "
            "and what it counted before that is lost"
        )
    return f"figures are the increase of {metrics.title}'s counters since {before.name}"
