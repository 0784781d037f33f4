"""Subscribes the process's telemetry to its trace writer, if the settings ask for telemetry."""

from __future__ import annotations

from typing import Any

from driftscope.telemetry.export.engine_telemetry import EngineTelemetry, WorkerTelemetry
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.settings import Settings


def publish(writer: TraceWriter, settings: Settings) -> None:
    """Publish a worker's figures for its engine core."""
    if settings.telemetry is None:
        return
    publisher = WorkerTelemetry(settings.trace, writer.source, writer.status)
    writer.subscribe(publisher.on_batches, publisher.publish)


def speak(writer: TraceWriter, settings: Settings, model_config: Any) -> EngineTelemetry | None:
    """Export the figures of the engine core and of its workers. Raises TelemetryError."""
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
    """Return the first of the names under which vLLM serves its model."""
    names = getattr(model_config, "served_model_name", None)
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)
