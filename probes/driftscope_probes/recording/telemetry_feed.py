"""Hangs the process's telemetry on its trace writer, where settings ask for any."""

from __future__ import annotations

from typing import Any

from driftscope.telemetry.export.engine_telemetry import EngineTelemetry, WorkerTelemetry
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.settings import Settings


def publish(writer: TraceWriter, settings: Settings) -> None:
    """A worker's figures, for its engine core."""
    if settings.telemetry is None:
        return
    publisher = WorkerTelemetry(settings.trace, writer.source, writer.status)
    writer.subscribe(publisher.on_batches, publisher.publish)


def speak(writer: TraceWriter, settings: Settings, model_config: Any) -> EngineTelemetry | None:
    """The engine core's own figures and its workers'. Raises TelemetryError."""
    if settings.telemetry is None:
        return None
    speaker = EngineTelemetry(
        settings.trace,
        writer.source,
        settings.telemetry,
        writer.status,
        model=_served_name(model_config),
    )
    writer.subscribe(speaker.on_batches, speaker.flush)
    return speaker


def _served_name(model_config: Any) -> str | None:
    """The first of the names under which vLLM answers for its model."""
    names = getattr(model_config, "served_model_name", None)
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)
