"""The `driftscope dashboards` command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import driftscope.telemetry
from driftscope.cli.options import real_folder
from driftscope.vocabulary import EngineName

FILES = Path(driftscope.telemetry.__file__).parent / "dashboards"
"""Folder of the files that the command copies."""
RULES = "prometheus/driftscope.rules.yml"
_ENGINES = "engines"
"""Folder of the files for servers without the probe."""


def dashboards(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", callback=real_folder, help="Folder to write into."
        ),
    ],
    engine: Annotated[
        EngineName | None,
        typer.Option(
            metavar="ENGINE",
            help="For servers without the probe, by the metrics that the engine publishes itself: "
            "vllm, sglang, trtllm, llamacpp or lmdeploy (the last three without a dashboard).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the names of the written files as JSON.")
    ] = False,
) -> None:
    """Copy Grafana dashboards, Prometheus rules and the alerts' runbook pages, to be edited.

    A file that you have edited is kept.
    """
    import sys

    from driftscope.boundary.files import write_file
    from driftscope.boundary.json_document import files_text
    from driftscope.boundary.text import shown

    written, kept = [], []
    for name, source in files(engine):
        path, content = output / name, source.read_bytes()
        if path.exists() and path.read_bytes() != content:
            kept.append(str(path))
            continue
        write_file(path, content, parents=True)
        written.append(str(path))
    if as_json:
        typer.echo(files_text(written), nl=False)
        return
    for path_name in written:
        sys.stderr.write(f"written: {shown(path_name)}\n")
    for path_name in kept:
        sys.stderr.write(
            f"kept: {shown(path_name)}, which differs; delete it to get this version's\n"
        )
    names = [name for name, _ in files(engine)]
    rules = " and ".join(shown(str(output / name)) for name in names if name.endswith(".yml"))
    sys.stderr.write(
        f"next: read the first lines of {rules}, and name these rules under rule_files in "
        "prometheus.yml (2.42 or newer)\n"
    )
    if any(name.startswith("grafana/") for name in names):
        sys.stderr.write(f"then: import {shown(str(output / 'grafana'))}/*.json into Grafana\n")


def files(engine: EngineName | None = None) -> Iterator[tuple[str, Path]]:
    """Yield the files that are copied, each with its name below the folder: those for the probe, or
    those for servers of `engine` without it."""
    folder = FILES / "prometheus" / (_ENGINES if engine else "")
    rules = (
        [folder / f"{engine}.rules.yml", folder / "alerts.rules.yml"] if engine else [FILES / RULES]
    )
    boards = f"{_ENGINES}/driftscope-{engine}.json" if engine else "*.json"
    alerts = rules[-1].read_text()
    pages = [page for page in (FILES / "runbooks").glob("*.md") if f": {page.stem}\n" in alerts]
    for kind, paths in (
        ("grafana", (FILES / "grafana").glob(boards)),
        ("prometheus", rules),
        ("runbooks", pages),
    ):
        yield from ((f"{kind}/{path.name}", path) for path in sorted(paths))
