"""Send figures and spans to a collector from a separate thread, with retries until it accepts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.tally import Tally
from driftscope.telemetry.export.settings import METRICS, TRACES

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

    from driftscope.telemetry.export.spans import Spans

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
"""Bounds of the back-off after a failure, in seconds. It doubles from the first to the last and
never exceeds the interval of the signal."""


class Back:
    """Schedule of a signal's next export."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._failures = interval_s, 0
        self.due_s = time.monotonic() + interval_s
        self.taken_s = time.monotonic()

    def took(self) -> None:
        """Record that a collector accepted the batch."""
        self._failures, self.taken_s = 0, time.monotonic()
        self.due_s = self.taken_s + self._interval_s

    def failed(self) -> None:
        """Record that the batch was rejected or that nobody answered."""
        wait_s = min(FIRST_RETRY_S * 2.0**self._failures, LAST_RETRY_S, self._interval_s)
        self._failures = min(self._failures + 1, 16)
        self.due_s = time.monotonic() + wait_s

    def is_due(self) -> bool:
        """Return whether an export is due."""
        return time.monotonic() >= self.due_s

    def behind_s(self) -> float:
        """Return the time since the last accepted batch, or since the start, in seconds."""
        return time.monotonic() - self.taken_s


class MetricSender:
    """Sender of metrics. Cumulative figures lose nothing by a failure; delta figures start where
    the last accepted batch ended."""

    def __init__(
        self,
        exporter: Any,
        health: Tally,
        *,
        interval_s: float,
        timeout_s: float,
        collect: Callable[[], MetricsData | None],
        taken: Callable[[], None],
    ) -> None:
        self._exporter, self._health, self._timeout_s = exporter, health, timeout_s
        self._collect, self._taken = collect, taken
        self.back = Back(interval_s)

    def send(self) -> bool:
        """Send now; return whether the batch was accepted."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = self._collect()
        if data is None:
            return False
        result = self._exporter.export(data, timeout_millis=self._timeout_s * 1000)
        good = result is MetricExportResult.SUCCESS
        (self.back.took if good else self.back.failed)()
        outcome = "success" if good else "failure"
        self._health.add(i.EXPORTS, 1, signal=METRICS, outcome=outcome)
        if good:
            self._taken()
        return good

    def shutdown(self) -> None:
        """Abandon the export in progress."""
        self._exporter.shutdown()


class SpanSender:
    """Sender of spans, which stay queued until a collector accepts them."""

    def __init__(
        self, exporter: Any, health: Tally, spans: Spans, *, interval_s: float, batch: int
    ) -> None:
        self._exporter, self._health, self._spans, self._batch = exporter, health, spans, batch
        self.back = Back(interval_s)

    def send(self) -> bool:
        """Send all queued spans, a batch at a time; return whether all were accepted."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        while spans := self._spans.take(self._batch):
            good = self._exporter.export(spans) is SpanExportResult.SUCCESS
            outcome = "success" if good else "failure"
            self._health.add(i.EXPORTS, 1, signal=TRACES, outcome=outcome)
            if not good:
                self.back.failed()
                return False
            self._spans.sent(len(spans))
        self.back.took()
        return True

    def shutdown(self) -> None:
        """Abandon the export in progress."""
        self._exporter.shutdown()
