"""The window between two scrapes of one server's Prometheus page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from driftscope.errors import UsageError
from driftscope.ingest.counter_window import between
from driftscope.ingest.figures import Figures, completed
from driftscope.ingest.page_figures import figures_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.readers.engines import prometheus_text
from driftscope.ingest.result_file import open_result
from driftscope.telemetry.collect.engine_metrics import EngineMetrics
from driftscope.telemetry.watch.engine_page import metrics_of, page_of_samples
from driftscope.telemetry.watch.page_samples import BadPageError, Sample, samples_on

SINCE_RESTART = "from the server's restart to the second scrape"
_STARTED = "process_start_time_seconds"
"""Gauge of Prometheus' own clients: the time at which the server's process began."""


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
    metrics, old, begun = _page(before)
    other, new, restarted = _page(after)
    if metrics is not other:
        raise UsageError(
            f"{before}, {after}: pages of {metrics.title} and of {other.title}; a window is the "
            "time between two scrapes of one server"
        )
    window = between(metrics, old, new, restarted=begun != restarted)
    try:
        page = page_of_samples(metrics, window.samples)
    except BadPageError as error:
        raise UsageError(f"{after}: {error}") from error
    period = SINCE_RESTART if window.resets else f"from {before.name} to {after.name}"
    figures = completed(figures_of(page, period, _words(metrics, before, reset=window.resets > 0)))
    if figures.is_empty:
        raise UsageError(f"{before}, {after}: no round was verified between these scrapes")
    return prometheus_text.READER, (figures,)


def _page(path: Path) -> tuple[EngineMetrics, list[Sample], float | None]:
    """Return a page's engine, its samples, and the time at which its process began."""
    text = open_result(path).text
    try:
        found = metrics_of(lambda metrics: samples_on(text, metrics.names))
        started = [each.value for each in samples_on(text, (_STARTED,))]
    except BadPageError as error:
        raise UsageError(f"{path}: {error}") from error
    if found is None:
        raise UsageError(f"{path}: no metrics page of an engine that speculates; save GET /metrics")
    return (*found, next(iter(started), None))


def _words(metrics: EngineMetrics, before: Path, *, reset: bool) -> str:
    if reset:
        return (
            f"counters of {metrics.title} began again after {before.name}: the server restarted, "
            "and what it counted before that is lost"
        )
    return f"figures are the increase of {metrics.title}'s counters since {before.name}"
