"""Subscribes the process's telemetry to its trace writer, if the settings ask for telemetry."""

from __future__ import annotations

from driftscope.telemetry.export.engine_telemetry import EngineTelemetry
from driftscope.telemetry.export.worker_telemetry import WorkerTelemetry
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.settings import Settings


def publish(writer: TraceWriter, settings: Settings) -> None:
    """Publish a worker's figures for its engine core."""
    if settings.telemetry is None:
        return
    publisher = WorkerTelemetry(settings.trace, writer.source, writer.status)
    writer.subscribe(publisher.on_batches, publisher.publish)


def export(writer: TraceWriter, settings: Settings, model: str | None) -> EngineTelemetry | None:
    """Export the figures of the engine core and of its workers, which serve `model` under that
    name. Raises TelemetryError."""
    if settings.telemetry is None:
        return None
    telemetry = EngineTelemetry(
        settings.trace,
        writer.source,
        settings.telemetry,
        writer.status,
        model=model,
    )
    writer.subscribe(telemetry.on_batches, telemetry.flush)
    return telemetry
