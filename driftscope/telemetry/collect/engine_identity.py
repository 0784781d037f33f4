"""Identity of an engine: the attributes of every series and an OpenTelemetry resource."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from driftscope.errors import DriftscopeError
from driftscope.telemetry.collect.instruments import DRAFTER, ENGINE, MODEL
from driftscope.telemetry.collect.service_resource import service_resource
from driftscope.trace.format.manifest import MANIFEST, Manifest, Model, read_manifest
from driftscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SERVICE = "driftscope"
DIGEST_CHARS = 8
"""Hexadecimal digits of a model's digest in a label."""
_CACHED = "models--"
"""Prefix of a repository's folder in the Hugging Face cache, whose snapshots are named by hash."""


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
            MODEL: model_label(replace(self.manifest.target, name=self.model)),
            DRAFTER: model_label(self.manifest.drafter),
            ENGINE: self.manifest.engine,
        }

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take
        precedence over the values set here."""
        return service_resource(
            {
                "service.name": SERVICE,
                "service.instance.id": self.instance,
                "service.version": __version__,
                "driftscope.run.id": self.manifest.run_id,
                "driftscope.replica": self.replica,
                "driftscope.engine.version": self.manifest.engine_version,
            }
        )

    @property
    def instance(self) -> str:
        """Instance id, constant while the engine runs and unique among engines."""
        return f"{socket.gethostname()}/{self.manifest.run_id}/{self.replica}"


def model_label(model: Model) -> str:
    """Return a model's name as a label: a served or repository name as it is, a file path as its
    last part and the first DIGEST_CHARS digits of the digest of its weights, or of its config.

    A path differs between replicas that mount the same files elsewhere, and tells where they are.
    """
    if not model.name.startswith(("/", "./", "../", "~")):
        return model.name
    path = PurePosixPath(model.name)
    for part in path.parts:
        if part.startswith(_CACHED):
            return part.removeprefix(_CACHED).replace("--", "/")
    digest = (model.weights_digest or model.config_digest)[:DIGEST_CHARS]
    return f"{path.name}@{digest}" if digest else path.name


class ManifestFile:
    """A run's manifest, read again when it changes. It may appear later or be rewritten."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._seen: tuple[int, int] | None = None
        self._manifest: Manifest | None = None

    def read(self) -> Manifest | None:
        """Return the current manifest; None before the first one is written."""
        try:
            file = (self._run / MANIFEST).stat()
            seen = (file.st_mtime_ns, file.st_ino)
            if seen != self._seen:
                self._manifest, self._seen = read_manifest(self._run), seen
        except (OSError, DriftscopeError):  # not written yet, or being rewritten
            pass
        return self._manifest
