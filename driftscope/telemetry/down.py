"""Telemetry of an engine whose probe records nothing: that it is down, and why.

It needs no run directory and no Arrow, because either may be what is missing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
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
from driftscope.telemetry.settings import Settings
from driftscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

POLL_S = 0.5
"""Interval at which due exports are looked for, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownIdentity:
    """Identity of an engine without a run."""

    model: str
    drafter: str
    engine: str
    engine_version: str
    replica: int = 0
    start: str = ""
    """Identity of the engine's start."""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of every series, as for an engine that records."""
        return {MODEL: self.model, DRAFTER: self.drafter, PROVIDER: self.engine}

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource."""
        return service_resource(
            {
                "service.name": "driftscope",
                "service.instance.id": f"{socket.gethostname()}/{self.start}/{self.replica}",
                "service.version": __version__,
                "driftscope.replica": self.replica,
                "driftscope.engine.version": self.engine_version,
            }
        )


class DownTelemetry:
    """Exports `driftscope.probe.up` = 0 until the process ends; on threads of its own.

    Raises TelemetryError from the constructor if the settings cannot be met.
    """

    def __init__(self, identity: DownIdentity, kind: str, settings: Settings) -> None:
        """`kind`: the fault's kind, a word of a closed set."""
        self._identity, self._started_s = identity, time.time()
        self._tally = Tally()
        self._tally.set(i.UP, 0, source=f"engine{identity.replica}", reason=kind)
        if settings.prometheus is not None:
            from driftscope.telemetry.prometheus import serve

            host, port = settings.prometheus
            serve(self, host, port + identity.replica)
        if (send := self._sender(settings)) is not None:
            threading.Thread(target=send, name="driftscope-export", daemon=True).start()

    def snapshot(self) -> dict[Key, Point]:
        """Return the one figure that there is."""
        return self._tally.snapshot()

    def identity(self) -> DownIdentity:
        """Return the identity of the engine."""
        return self._identity

    def _sender(self, settings: Settings) -> Callable[[], None] | None:
        if settings.metrics is None:
            return None
        from driftscope.telemetry.export import MetricSender, metric_exporter

        exporter = metric_exporter(settings)
        if exporter is None:
            return None
        sender = MetricSender(
            exporter,
            Tally(),
            interval_s=settings.interval_s,
            timeout_s=settings.timeout_s,
            collect=self._collect,
            taken=lambda: None,
        )

        def send() -> None:
            while True:
                if sender.schedule.is_due():
                    with contextlib.suppress(Exception):  # the border: the thread must go on
                        sender.send()
                time.sleep(POLL_S)

        return send

    def _collect(self) -> MetricsData:
        from driftscope.telemetry.export import metrics_data

        return metrics_data(
            self.snapshot(),
            resource=self._identity.resource(),
            constants=self._identity.attributes,
            start_s=self._started_s,
            time_s=time.time(),
        )


def service_resource(attributes: Mapping[str, str | int]) -> Resource:
    """Return the resource with `attributes`, over which OTEL_SERVICE_NAME and
    OTEL_RESOURCE_ATTRIBUTES take precedence."""
    from opentelemetry.sdk.resources import Resource

    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    set_ = {pair.partition("=")[0].strip() for pair in given.split(",")}
    if os.environ.get("OTEL_SERVICE_NAME"):
        set_.add("service.name")
    return Resource.create({name: v for name, v in attributes.items() if name not in set_})
