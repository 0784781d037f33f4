"""Hangs the process's telemetry on its trace writer, where settings ask for any."""

from __future__ import annotations

from typing import Any

from driftscope.telemetry.export.engine_telemetry import Publisher, Speaker
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.settings import Settings


def publish(writer: TraceWriter, settings: Settings) -> None:
    """A worker's figures, for its engine core."""
    if settings.telemetry is None:
        return
    publisher = Publisher(settings.trace, writer.source, writer.status)
    writer.listen(publisher.hear, publisher.publish)


def speak(writer: TraceWriter, settings: Settings, model_config: Any) -> Speaker | None:
    """The engine core's own figures and its workers'. Raises TelemetryError."""
    if settings.telemetry is None:
        return None
    speaker = Speaker(
        settings.trace,
        writer.source,
        settings.telemetry,
        writer.status,
        model=_served_name(model_config),
    )
    writer.listen(speaker.hear, speaker.flush)
    return speaker


def _served_name(model_config: Any) -> str | None:
    """The first of the names under which vLLM answers for its model."""
    names = getattr(model_config, "served_model_name", None)
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)
