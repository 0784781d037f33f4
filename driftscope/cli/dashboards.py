"""The `driftscope dashboards` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import driftscope.telemetry
from driftscope.cli.options import real_folder

FILES = Path(driftscope.telemetry.__file__).parent / "dashboards"
"""Folder of the files that the command copies."""
KINDS = ("grafana/*.json", "prometheus/**/*.yml", "runbooks/*.md")
RULES = "prometheus/driftscope.rules.yml"


def dashboards(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=real_folder, help="Folder to write into."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the names of the written files as JSON.")
    ] = False,
) -> None:
    """Copy Grafana dashboards, Prometheus rules and the alerts' runbook pages, to be edited.

    A file that you have edited is kept.

    prometheus/engines/ has rules on the metrics that vLLM, SGLang, TensorRT-LLM, llama.cpp and
    LMDeploy publish themselves, for servers without driftscope's probe.
    """
    import sys

    from driftscope.boundary.files import write_file
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown

    written, kept = [], []
    for file in sorted(path for kind in KINDS for path in FILES.glob(kind)):
        path, content = output / file.relative_to(FILES), file.read_bytes()
        if path.exists() and path.read_bytes() != content:
            kept.append(str(path))
            continue
        write_file(path, content, parents=True)
        written.append(str(path))
    if as_json:
        typer.echo(files_text(written), nl=False)
        return
    for name in written:
        sys.stderr.write(f"written: {shown(name)}\n")
    for name in kept:
        sys.stderr.write(f"kept: {shown(name)}, which differs; delete it to get this version's\n")
    sys.stderr.write(
        f"next: read the first lines of {shown(str(output / RULES))}, name it under rule_files in "
        f"prometheus.yml (2.42 or newer), and import {shown(str(output / 'grafana'))}/*.json into "
        "Grafana\n"
    )
