"""Follows an engine from outside: a run directory that is being written, or its scrape endpoint."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from driftscope.errors import TelemetryError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.feed import Feed
from driftscope.telemetry.identity import ManifestFile
from driftscope.telemetry.live import in_order
from driftscope.telemetry.scrape import label_name, metric_name
from driftscope.telemetry.statuses import tell
from driftscope.telemetry.tally import Key, Point, Tally, attributes
from driftscope.trace.manifest import read_manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.reader import read_segment
from driftscope.trace.schema import conform
from driftscope.trace.segment import segments, source_of
from driftscope.trace.status import read_statuses

TIMEOUT_S = 5.0
_RECORDS = ("draft", "verify", "step", "request")


class Followed(Protocol):
    """An engine that is looked at now and then."""

    def look(self) -> dict[Key, Point]:
        """Its figures as they stand; raises DriftscopeError."""

    @property
    def over(self) -> bool:
        """Whether nothing can come any more."""


class FollowedRun:
    """A run directory: each look reads what came since the one before.

    Raises NotATraceError and its siblings where there is no run.
    """

    def __init__(self, run: Path) -> None:
        read_manifest(run)
        self._run, self._manifest = run, ManifestFile(run)
        self._tally, self._rows = Tally(), Counter[str]()
        self._feeds = {
            first: Feed(tally=self._tally, sink_slots=self._manifest.sink_slots, first_rank=first)
            for first in (True, False)
        }
        self.over = False

    def look(self) -> dict[Key, Point]:
        """Its figures as they stand."""
        statuses = read_statuses(self._run)  # first: what they say is written is then found
        for record in _RECORDS:
            for path in segments(self._run, record):
                self._read(record, path)
        for status in statuses:
            tell(self._tally, status)
        if manifest := self._manifest.read():
            self._tally.set(i.CONFIGURED_K, manifest.k)
        self.over = bool(statuses) and all(status.closed for status in statuses)
        return self._tally.snapshot()

    def _read(self, record: str, path: Path) -> None:
        table = read_segment(path, [])
        new = table.slice(self._rows[path.stem])
        self._rows[path.stem] = max(table.num_rows, self._rows[path.stem])
        if not new.num_rows:
            return
        feed = self._feeds[place_of(source_of(path, record)).rank == 0]
        batches = conform(new, record).combine_chunks().to_batches()
        for name, batch in in_order([(record, batch) for batch in batches]):
            feed.take(name, batch)


class FollowedEndpoint:
    """The endpoint of an engine that answers Prometheus. Raises TelemetryError."""

    over = False

    def __init__(self, url: str) -> None:
        base = url.rstrip("/")
        self._url = base if base.endswith("/metrics") else f"{base}/metrics"
        self.look()

    def look(self) -> dict[Key, Point]:
        """Its figures as they stand."""
        from prometheus_client.parser import text_string_to_metric_families

        try:
            with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except (OSError, ValueError) as error:
            raise TelemetryError(f"{self._url}: no figures there ({error})") from error
        points = {point.key: point for family in families for point in _points(family)}
        if not any(name.startswith("driftscope.") for name, _ in points):
            raise TelemetryError(
                f"{self._url}: none of driftscope's metrics there; give the port of "
                "`driftscope serve --prometheus PORT`, or the run directory"
            )
        return points


def follow(target: str) -> Followed:
    """What `target` names, a run directory or a URL; raises DriftscopeError."""
    if target.startswith(("http://", "https://")):
        return FollowedEndpoint(target)
    return FollowedRun(Path(target))


_BY_NAME = {metric_name(instrument): instrument for instrument in i.INSTRUMENTS.values()}


def _points(family: Any) -> Iterable[Point]:
    instrument = _BY_NAME.get(family.name)
    if instrument is None:
        return
    long = {label_name(name): name for name in instrument.attributes}
    found: dict[Any, dict[str, Any]] = {}
    for sample in family.samples:
        key = attributes({long[k]: v for k, v in sample.labels.items() if k in long and v})
        part = found.setdefault(key, {"value": 0.0, "below": []})
        if sample.name.endswith("_bucket"):
            part["below"].append((float(sample.labels["le"]), int(sample.value)))
        elif not sample.name.endswith(("_count", "_created")):
            part["value"] = sample.value
    for key, part in found.items():
        counts = [count for _, count in sorted(part["below"])]
        buckets = tuple(b - a for a, b in zip([0, *counts], counts, strict=False))
        yield Point(name=instrument.name, attributes=key, value=part["value"], buckets=buckets)
