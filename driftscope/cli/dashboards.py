"""`driftscope dashboards`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_DURATION = r"[0-9]+(ms|[smhdwy])"


def dashboards(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")
    ],
    window: Annotated[str, typer.Option(help="Window of every rate.")] = "5m",
    past: Annotated[str, typer.Option(help="An engine's own past, to compare with.")] = "1d",
    gap: Annotated[str, typer.Option(help="How long ago that past ends.")] = "1h",
    hold: Annotated[str, typer.Option(help="How long something is so before an alert.")] = "10m",
    evaluate: Annotated[str, typer.Option(help="Time between two evaluations.")] = "30s",
    least_rounds: Annotated[
        float, typer.Option(min=0, help="Rounds per second below which no alert is raised.")
    ] = 1.0,
    acceptance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of its past to which acceptance has to fall."),
    ] = 0.8,
    runbooks: Annotated[
        str, typer.Option(help="URL or folder where alerts say that their pages lie.")
    ] = "runbooks",
) -> None:
    """Write Grafana dashboards, Prometheus rules and the alerts' runbook pages."""
    import re
    import sys

    from driftscope.boundary.terminal_text import shown
    from driftscope.errors import UsageError
    from driftscope.telemetry.dashboards.alerts import Thresholds
    from driftscope.telemetry.dashboards.files import RULES, write
    from driftscope.telemetry.dashboards.recording import Times

    named = {"window": window, "past": past, "gap": gap, "hold": hold, "evaluate": evaluate}
    for name, value in named.items():
        if not re.fullmatch(_DURATION, value):
            raise UsageError(f"--{name} {value}: give a duration such as 30s, 5m or 1d")
    thresholds = Thresholds(least_rounds=least_rounds, acceptance=acceptance)
    for path in write(output, Times(**named), thresholds, runbooks=runbooks):
        sys.stderr.write(f"written: {shown(str(path))}\n")
    sys.stderr.write(
        f"next: name {shown(str(output / RULES))} under rule_files in prometheus.yml, and import "
        f"{shown(str(output / 'grafana'))}/*.json into Grafana\n"
    )
