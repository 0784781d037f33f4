"""`driftscope export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STDOUT = Path("-")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send metrics and spans to this OpenTelemetry collector, such as "
            "http://localhost:4318. Without it OTEL_EXPORTER_OTLP_ENDPOINT counts.",
        ),
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write OpenMetrics text with the run's own times; - is stdout."
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.001, help="Seconds of run time between two points of a series.")
    ] = 10.0,
) -> None:
    """Tell a recorded run again, as metrics and spans with the times that it had.

    `promtool tsdb create-blocks-from openmetrics FILE` reads the file into Prometheus.
    """
    import os
    import sys

    from driftscope.boundary.file_output import write_file
    from driftscope.boundary.terminal_text import shown
    from driftscope.errors import UsageError
    from driftscope.telemetry.export import settings as telemetry
    from driftscope.telemetry.export.recorded_run import replays, send, to_openmetrics
    from driftscope.trace.read.reader import read_trace

    environ = {**os.environ, telemetry.PROMETHEUS: "", **({telemetry.OTLP: otlp} if otlp else {})}
    settings = None if prometheus and not otlp else telemetry.settings_from(environ)
    if settings is None and prometheus is None:
        raise UsageError("nowhere to export to: give --otlp URL or --prometheus FILE")
    labels = () if settings is None else settings.labels
    told = list(replays(read_trace(run), interval_s=interval, labels=labels))
    if prometheus is not None:
        text = to_openmetrics(told)
        if prometheus == STDOUT:
            typer.echo(text, nl=False)
        else:
            write_file(prometheus, text.encode())
            name = shown(str(prometheus))
            sys.stderr.write(f"written: {name}\n")
            sys.stderr.write(
                f"next: promtool tsdb create-blocks-from openmetrics {name} DATA_DIRECTORY\n"
            )
    if settings is not None:
        for each in told:
            batches, spans = send(each, settings)
            sys.stderr.write(f"sent: {batches} batches of metrics, {spans} spans\n")
