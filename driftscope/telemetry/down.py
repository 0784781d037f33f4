"""Telemetry of an engine whose probe records nothing: that it is down, and why.

It needs no run directory and no Arrow, because either may be what is missing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import Identity, Key, Point, Tally
from driftscope.telemetry.settings import METRICS, ExportSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

POLL_S = 0.5
"""Interval at which due exports are looked for, in seconds."""


class DownTelemetry:
    """Exports `driftscope.probe.up` = 0 until the process ends; on threads of its own.

    Raises TelemetryError from the constructor if the settings cannot be met.
    """

    def __init__(self, identity: Identity, kind: str, settings: ExportSettings) -> None:
        """`kind`: the fault's kind, a word of a closed set."""
        self._identity, self._started_s = identity, time.time()
        self._tally = Tally()
        self._tally.set(i.UP, 0, source=f"engine{identity.replica}", reason=kind)
        if settings.prometheus is not None:
            from driftscope.telemetry.prometheus import serve

            host, port = settings.prometheus
            serve(self, host, port + identity.replica)
        if settings.metrics is not None:
            from driftscope.telemetry.export import metric_exporter

            arguments = metric_exporter(settings), settings
            threading.Thread(
                target=self._send, args=arguments, name="driftscope-export", daemon=True
            ).start()

    def snapshot(self) -> dict[Key, Point]:
        """Return the one figure that there is."""
        return self._tally.snapshot()

    def identity(self) -> Identity:
        """Return the identity of the engine."""
        return self._identity

    def _send(self, exporter: MetricExporter, settings: ExportSettings) -> None:
        from driftscope.telemetry.export import SignalExport, export_metrics, metrics_data

        sender = SignalExport(METRICS, Tally(), settings.interval_s)
        while True:
            with contextlib.suppress(Exception):  # the border: the thread must go on
                if sender.is_due():
                    data = metrics_data(
                        self.snapshot(),
                        resource=self._identity.resource(),
                        constants=self._identity.attributes,
                        start_s=self._started_s,
                        time_s=time.time(),
                    )
                    sender.note(export_metrics(exporter, data, settings))
            time.sleep(POLL_S)
