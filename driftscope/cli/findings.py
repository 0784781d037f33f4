"""The `driftscope findings` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from driftscope.findings.case import Entry

_PIPE_WIDTH = 160
"""Width in columns when the output is not a terminal and COLUMNS is not set."""


def findings(
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List the findings that driftscope can make in a run: meaning, thresholds and their
    sources."""
    from rich.table import Table

    from driftscope.boundary.json_document import layout
    from driftscope.boundary.text import output_console
    from driftscope.findings.catalogue import CATALOGUE, REPLAYS

    entries: list[Entry[Any]] = [*CATALOGUE.values(), *REPLAYS.values()]
    if as_json:
        content = {
            entry.id: {
                "title": entry.title,
                "meaning": entry.meaning,
                "needs": entry.need.words,
                "thresholds": [
                    {"name": t.name, "value": t.value, "means": t.means, "source": t.source}
                    for t in entry.thresholds
                ],
            }
            for entry in entries
        }
        typer.echo(layout(content), nl=False)
        return
    table = Table(pad_edge=False, show_lines=True)
    for name in ("id", "meaning", "threshold", "source"):
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for entry in entries:
        stated = "\n".join(f"{t.value:g} ({t.means})" for t in entry.thresholds) or "none"
        sources = "\n".join(threshold.source for threshold in entry.thresholds)
        table.add_row(entry.id, entry.meaning, stated, sources)
    output_console(_PIPE_WIDTH).print(table)
