"""Identity of an engine: the attributes of every series and an OpenTelemetry resource."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import driftscope
from driftscope.errors import DriftscopeError
from driftscope.telemetry.collect.instruments import DRAFTER, ENGINE, MODEL
from driftscope.trace.format.manifest import MANIFEST, Manifest, read_manifest

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SERVICE = "driftscope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one engine."""

    manifest: Manifest
    model: str
    replica: int = 0

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that every series of the engine has."""
        return {
            MODEL: self.model,
            DRAFTER: self.manifest.drafter.name,
            ENGINE: self.manifest.engine,
        }

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take
        precedence over the values set here."""
        from opentelemetry.sdk.resources import Resource

        given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        set_ = {pair.partition("=")[0].strip() for pair in given.split(",")}
        if os.environ.get("OTEL_SERVICE_NAME"):
            set_.add("service.name")
        mine: dict[str, str | int] = {
            "service.name": SERVICE,
            "service.instance.id": self.instance,
            "service.version": driftscope.__version__,
            "driftscope.run.id": self.manifest.run_id,
            "driftscope.replica": self.replica,
            "driftscope.engine.version": self.manifest.engine_version,
        }
        return Resource.create({name: v for name, v in mine.items() if name not in set_})

    @property
    def instance(self) -> str:
        """Instance id, constant while the engine runs and unique among engines."""
        return f"{socket.gethostname()}/{self.manifest.run_id}/{self.replica}"


class ManifestFile:
    """A run's manifest, read again when it changes. It may appear later or be rewritten."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen: tuple[int, int] | None = None
        self._manifest: Manifest | None = None

    def read(self) -> Manifest | None:
        """Return the current manifest; None before the first one is written."""
        try:
            found = (self._run / MANIFEST).stat()
            seen = (found.st_mtime_ns, found.st_ino)
            if seen != self._seen:
                self._manifest, self._seen = read_manifest(self._run), seen
        except (OSError, DriftscopeError):  # not written yet, or being rewritten
            pass
        return self._manifest

    def sink_slots(self) -> tuple[int, ...]:
        """Return the sink set in force."""
        manifest = self.read()
        return () if manifest is None else manifest.sink_slots
