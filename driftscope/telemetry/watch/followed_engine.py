"""Follow an engine from outside: a run directory that is being written, or a scrape endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from driftscope.boundary.bounds import MAX_K, MAX_METRICS_BYTES
from driftscope.boundary.http_peer import OK, Limits, ask, public
from driftscope.boundary.text import shown
from driftscope.errors import (
    DamagedTraceError,
    NoDataError,
    PeerError,
    TelemetryError,
    UsageError,
)
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_counter import BadRowError, BatchCounter
from driftscope.telemetry.collect.engine_identity import ManifestFile
from driftscope.telemetry.collect.engine_metrics import ENGINES, EngineName
from driftscope.telemetry.collect.status_figures import record_status
from driftscope.telemetry.collect.tally import Key, Point, Tally
from driftscope.telemetry.export.batch_order import in_order
from driftscope.telemetry.watch.engine_page import EnginePage, page_of
from driftscope.telemetry.watch.page_samples import BadPageError
from driftscope.telemetry.watch.prometheus_page import points_on
from driftscope.trace.format.manifest import CLIENT, read_manifest
from driftscope.trace.format.segment import segments, source_of
from driftscope.trace.format.status import Status, read_statuses
from driftscope.trace.read.ranks import place_of
from driftscope.trace.read.reader import read_rows

LIMITS = Limits(seconds=5.0, octets=MAX_METRICS_BYTES)
"""Limits of one request to an endpoint."""
_RECORDS = ("draft", "verify", "step", "request")


class Followed(Protocol):
    """An engine that is polled."""

    def look(self) -> dict[Key, Point]:
        """Return the current figures; raises DriftscopeError."""

    @property
    def over(self) -> bool:
        """Whether no further figures can come."""

    @property
    def budget(self) -> float | None:
        """Share of the time per token that the probe may use; None: not governed, or not known."""

    @property
    def length(self) -> float | None:
        """Acceptance length of the engine's last log interval, where it publishes no counts."""

    @property
    def title(self) -> str:
        """Name of the engine whose own metrics these are; empty if they are driftscope's."""


class FollowedRun:
    """A run directory; each call of `look` reads the rows written since the previous one.

    Raises NotATraceError and its siblings where there is no run.
    """

    def __init__(self, run: Path) -> None:
        if read_manifest(run).engine == CLIENT:
            raise NoDataError(
                f"{run}: is a replay, which has no engine to watch; give the run recorded in the "
                "server"
            )
        self._run, self._manifest = run, ManifestFile(run)
        self._tally, self._rows = Tally(), Counter[str]()
        self._counters = {
            first: BatchCounter(tally=self._tally, first_rank=first) for first in (True, False)
        }
        self.over = False
        self.budget: float | None = None
        self.length, self.title = None, ""

    def look(self) -> dict[Key, Point]:
        """Return the current figures."""
        statuses = read_statuses(self._run)  # first: rows reported as written are then found
        for record in _RECORDS:
            for path in segments(self._run, record):
                self._read(record, path)
        for status in statuses:
            record_status(self._tally, status)
        self.budget = _budget_of(statuses)
        if manifest := self._manifest.read():
            if not 0 <= manifest.k <= MAX_K:
                raise DamagedTraceError(f"{self._run}: its manifest has k = {manifest.k}")
            self._tally.set(i.CONFIGURED_K, manifest.k)
        self.over = bool(statuses) and all(status.closed for status in statuses)
        return self._tally.snapshot()

    def _read(self, record: str, path: Path) -> None:
        table = read_rows(path, record, [])
        new = table.slice(self._rows[path.stem])
        self._rows[path.stem] = max(table.num_rows, self._rows[path.stem])
        if not new.num_rows:
            return
        counter = self._counters[place_of(source_of(path, record)).rank == 0]
        batches = new.combine_chunks().to_batches()
        for name, batch in in_order([(record, batch) for batch in batches]):
            try:
                counter.take(name, batch)
            except BadRowError as error:
                raise DamagedTraceError(f"{path}: {error}") from error


class FollowedEndpoint:
    """The endpoint of an engine that answers Prometheus. Raises TelemetryError.

    It shows driftscope's metrics, or the engine's own if the page has no others or if `own` asks
    for them. User and password in `url` are sent in its Authorization header and are never shown.
    """

    over, budget = False, None

    def __init__(self, url: str, own: Sequence[EngineName] = ()) -> None:
        base = url.rstrip("/")
        self._url = base if base.endswith("/metrics") else f"{base}/metrics"
        self._shown = public(self._url)
        self._own = own
        self.length: float | None = None
        self.title = ""
        self.look()

    def look(self) -> dict[Key, Point]:
        """Return the current figures."""
        page, points = self._page()
        if points:
            return points
        if page is None:
            asked = " or ".join(ENGINES[name].title for name in self._own or ENGINES)
            others = "" if self._own else "driftscope's, or those of "
            raise TelemetryError(
                f"{self._shown}: no metrics of speculative decoding there ({others}{asked}); give "
                "the port of `driftscope serve --prometheus PORT`, the run directory, or the "
                "metrics page of a server that speculates"
            )
        self.length, self.title = page.length, page.metrics.title
        return page.points

    def _page(self) -> tuple[EnginePage | None, dict[Key, Point]]:
        """Return the engine's own figures, or else driftscope's."""
        try:
            answer = ask(self._url, LIMITS)
            if answer.status != OK:
                raise BadPageError(f"HTTP {answer.status}")
            text = answer.text()
            points = {} if self._own else points_on(text)
            known = [ENGINES[name] for name in self._own or ENGINES]
            return (None, points) if points else (page_of(text, known), {})
        except PeerError as error:
            raise TelemetryError(f"{self._shown}: no metrics there ({error.why})") from error
        except BadPageError as error:
            raise TelemetryError(
                f"{self._shown}: no metrics there ({shown(str(error))})"
            ) from error


def _budget_of(statuses: Iterable[Status]) -> float | None:
    """Return the budget in force in the workers, if one is."""
    asked = (status.control.get("budget") for status in statuses)
    return next((float(each) for each in asked if isinstance(each, int | float)), None)


def follow(target: str, own: Sequence[EngineName] = ()) -> Followed:
    """Return the engine named by `target`, a run directory or a URL; raises DriftscopeError.

    `own`: the engines whose own metrics are read, whatever else the page holds.
    """
    if target.startswith(("http://", "https://")):
        return FollowedEndpoint(target, own)
    if own:
        raise UsageError(f"{shown(target)}: is not a URL; --engine and --scrape read a server's")
    return FollowedRun(Path(target))
