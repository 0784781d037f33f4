"""The `driftscope dashboards` command."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.shared.run_argument import real_folder
from driftscope.errors import UsageError
from driftscope.telemetry.collect.engine_metrics import EngineName

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
_DURATION = rf"([0-9]+)({'|'.join(_UNITS_S)})"


def dashboards(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=real_folder, help="Folder to write into."
        ),
    ],
    window: Annotated[str, typer.Option(metavar="TIME", help="Time window of every rate.")] = "5m",
    chain_window: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time window of means over recorded chains, which are rarer."
        ),
    ] = "30m",
    past: Annotated[
        str, typer.Option(metavar="TIME", help="Length of a model's own past, to compare with.")
    ] = "7d",
    gap: Annotated[
        str, typer.Option(metavar="TIME", help="Time between the end of that past and now.")
    ] = "1h",
    hold: Annotated[
        str, typer.Option(metavar="TIME", help="How long a condition must hold before an alert.")
    ] = "10m",
    keep: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long an alert goes on after its condition has ended."
        ),
    ] = "30m",
    memory: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long a model's state is kept while none of its engines reports.",
        ),
    ] = "1d",
    evaluate: Annotated[
        str, typer.Option(metavar="TIME", help="Time between two evaluations.")
    ] = "30s",
    least_rounds: Annotated[
        float,
        typer.Option(
            metavar="RATE", min=0, help="Rounds per second below which no alert is raised."
        ),
    ] = 1.0,
    acceptance: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0,
            max=1,
            help="Share of its reference to which acceptance must fall for an alert.",
        ),
    ] = 0.8,
    acceptance_back: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0, max=1, help="Share of its reference at which the alert ends."
        ),
    ] = 0.85,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=LENGTH",
            help="Acceptance length to compare a served model with, in place of its past; may be "
            "repeated.",
        ),
    ] = None,
    runbooks: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where the runbook pages are published, for the alerts' links."
        ),
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            metavar="ENGINE",
            help="Write rules on the metrics that this engine publishes itself, for servers "
            "without driftscope's probe; no dashboards. One of vllm, sglang, trtllm, llamacpp and "
            "lmdeploy.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the names of the written files as JSON.")
    ] = False,
) -> None:
    """Write Grafana dashboards, Prometheus rules and the alerts' runbook pages."""
    import sys

    from driftscope.boundary.terminal_text import shown
    from driftscope.json_report.operation import files_to_json
    from driftscope.telemetry.dashboards.files import write, write_engine_rules
    from driftscope.telemetry.dashboards.rule_options import Thresholds, Times

    times = Times(
        window=_duration("--window", window),
        chain_window=_duration("--chain-window", chain_window),
        past=_duration("--past", past),
        gap=_duration("--gap", gap),
        hold=_duration("--hold", hold),
        keep=_duration("--keep", keep),
        memory=_duration("--memory", memory),
        evaluate=_duration("--evaluate", evaluate),
    )
    if _seconds(times.hold) < _seconds(times.window):
        raise UsageError(
            f"--hold {hold}: at least --window ({window}), or the last rounds before a pause decide"
        )
    thresholds = Thresholds(
        least_rounds=least_rounds,
        acceptance=acceptance,
        acceptance_back=_back(acceptance, acceptance_back),
        references=dict(map(_reference, reference or ())),
    )
    link = _url(runbooks)
    if engine is None:
        written = write(output, times, thresholds, runbooks=link)
    else:
        written = write_engine_rules(output, engine, times, thresholds, runbooks=link)
    if as_json:
        typer.echo(files_to_json([str(path) for path in written]), nl=False)
        return
    for path in written:
        sys.stderr.write(f"written: {shown(str(path))}\n")
    boards = f", and import {shown(str(output / 'grafana'))}/*.json into Grafana"
    sys.stderr.write(
        f"next: name {shown(str(written[0]))} under rule_files in prometheus.yml (2.42 or newer)"
        f"{'' if engine else boards}\n"
    )
    if runbooks is None:
        sys.stderr.write(
            f"alerts link to no page: publish {shown(str(output / 'runbooks'))} and give "
            "--runbooks URL\n"
        )


def _duration(option: str, value: str) -> str:
    if not re.fullmatch(_DURATION, value):
        raise UsageError(f"{option} {value}: give a duration such as 30s, 5m or 1d")
    return value


def _seconds(duration: str) -> float:
    number, unit = re.fullmatch(_DURATION, duration).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS_S[unit]


def _back(acceptance: float, back: float) -> float:
    if back < acceptance:
        raise UsageError(
            f"--acceptance-back {back:g}: an alert that begins below {acceptance:g} must end at "
            "that share or above"
        )
    return back


def _reference(given: str) -> tuple[str, float]:
    model, _, length = given.rpartition("=")
    try:
        value = float(length)
    except ValueError:
        value = math.nan
    if not model or not 1 <= value < math.inf:
        raise UsageError(
            f"--reference {given}: give a served model's name and tokens per round, such as "
            "chat-8b=3.2; a round yields at least 1"
        )
    return model, value


def _url(runbooks: str | None) -> str | None:
    if runbooks is not None and not re.match(r"https?://", runbooks):
        raise UsageError(
            f"--runbooks {runbooks}: give a URL (https://...), because Alertmanager shows it to "
            "people who do not have your folders"
        )
    return runbooks
