"""Follow an engine from outside: a run directory that is being written, or a scrape endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from driftscope.boundary.bounds import MAX_K, MAX_METRICS_BYTES
from driftscope.boundary.http_peer import OK, Limits, ask
from driftscope.boundary.server_url import public
from driftscope.boundary.terminal_text import shown
from driftscope.errors import DamagedTraceError, NoDataError, PeerError, TelemetryError
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_counter import BadRowError, BatchCounter
from driftscope.telemetry.collect.engine_identity import ManifestFile
from driftscope.telemetry.collect.status_figures import record_status
from driftscope.telemetry.collect.tally import Key, Point, Tally
from driftscope.telemetry.export.batch_order import in_order
from driftscope.telemetry.watch.prometheus_page import BadPageError, points_on
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

    User and password in `url` are sent in its Authorization header and are never shown.
    """

    over, budget = False, None

    def __init__(self, url: str) -> None:
        base = url.rstrip("/")
        self._url = base if base.endswith("/metrics") else f"{base}/metrics"
        self._shown = public(self._url)
        self.look()

    def look(self) -> dict[Key, Point]:
        """Return the current figures."""
        points = self._points()
        if not any(name.startswith("driftscope.") for name, _ in points):
            raise TelemetryError(
                f"{self._shown}: no driftscope metrics there; give the port of `driftscope serve "
                "--prometheus PORT`, or the run directory"
            )
        return points

    def _points(self) -> dict[Key, Point]:
        try:
            answer = ask(self._url, LIMITS)
            if answer.status != OK:
                raise BadPageError(f"HTTP {answer.status}")
            return points_on(answer.text())
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


def follow(target: str) -> Followed:
    """Return the engine named by `target`, a run directory or a URL; raises DriftscopeError."""
    if target.startswith(("http://", "https://")):
        return FollowedEndpoint(target)
    return FollowedRun(Path(target))
