"""Telemetry of an engine whose probe records nothing: that it is down, and why.

It needs no run directory and no Arrow, because either may be what is missing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import (
    DRAFTER,
    MODEL,
    PROVIDER,
    Key,
    Point,
    Tally,
)
from driftscope.telemetry.settings import METRICS, Settings
from driftscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource

POLL_S = 0.5
"""Interval at which due exports are looked for, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one engine."""

    model: str
    drafter: str
    """Label of the drafter; "" without one."""
    engine: str
    engine_version: str
    replica: int = 0
    start: str = ""
    """Identity of the engine's start."""
    run_id: str = ""
    """Identity of its run; "" if nothing is recorded."""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that every series of the engine has."""
        return {MODEL: self.model, DRAFTER: self.drafter, PROVIDER: self.engine}

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource, over which OTEL_SERVICE_NAME and
        OTEL_RESOURCE_ATTRIBUTES take precedence. Its instance id is constant while the engine runs
        and unique among engines."""
        from opentelemetry.sdk.resources import Resource

        attributes: dict[str, str | int] = {
            "service.name": "driftscope",
            "service.instance.id": f"{socket.gethostname()}/{self.run_id or self.start}"
            f"/{self.replica}",
            "service.version": __version__,
            **({"driftscope.run.id": self.run_id} if self.run_id else {}),
            "driftscope.replica": self.replica,
            "driftscope.engine.version": self.engine_version,
        }
        given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        set_ = {pair.partition("=")[0].strip() for pair in given.split(",")}
        if os.environ.get("OTEL_SERVICE_NAME"):
            set_.add("service.name")
        return Resource.create({name: v for name, v in attributes.items() if name not in set_})


class DownTelemetry:
    """Exports `driftscope.probe.up` = 0 until the process ends; on threads of its own.

    Raises TelemetryError from the constructor if the settings cannot be met.
    """

    def __init__(self, identity: Identity, kind: str, settings: Settings) -> None:
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

    def _send(self, exporter: MetricExporter, settings: Settings) -> None:
        from driftscope.telemetry.export import Sender, export_metrics, metrics_data

        sender = Sender(METRICS, Tally(), settings.interval_s)
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
