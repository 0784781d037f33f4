"""The `driftscope findings` command."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from driftscope.findings.case import Entry

_WIDTH = 80
_PIPE_WIDTH = 100
"""Width in columns when the output is not a terminal and COLUMNS is not set."""


def findings(
    finding: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Finding to explain."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the catalogue as JSON.")] = False,
) -> None:
    """List the findings that driftscope can make in a run, or explain one: its meaning, what it
    needs, and its thresholds with their sources."""
    from driftscope.boundary.json_document import layout
    from driftscope.boundary.text import output_console, shown
    from driftscope.errors import UsageError
    from driftscope.findings.catalogue import CATALOGUE, REPLAYS, no_finding

    entries: dict[str, Entry[Any]] = {**CATALOGUE, **REPLAYS}
    if finding is not None and finding not in entries:
        raise UsageError(f"{shown(finding)}: {no_finding(finding)}")
    chosen = [entries[finding]] if finding else [*entries.values()]
    if as_json:
        typer.echo(layout({entry.id: _document(entry) for entry in chosen}), nl=False)
    elif finding:
        typer.echo(_explained(chosen[0]))
    else:
        console, longest = output_console(_PIPE_WIDTH), max(map(len, entries))
        for entry in chosen:
            line = f"{entry.id:{longest}}  {entry.title}"
            console.print(line, no_wrap=True, overflow="ellipsis", markup=False)
        typer.echo("driftscope findings ID explains one.", err=True)


def _document(entry: Entry[Any]) -> dict[str, object]:
    return {
        "title": entry.title,
        "meaning": entry.meaning,
        "needs": entry.need.words,
        "thresholds": [
            {"name": t.name, "value": t.value, "means": t.means, "source": t.source}
            for t in entry.thresholds
        ],
    }


def _explained(entry: Entry[Any]) -> str:
    """Return the meaning of a finding, what it needs, and its thresholds with their sources."""
    paragraphs = [entry.title, entry.meaning, f"It needs {entry.need.words}."]
    lines = ["\n\n".join(textwrap.fill(words, _WIDTH) for words in paragraphs if words)]
    for threshold in entry.thresholds:
        words = f"{threshold.value:g}: {threshold.means}. Source: {threshold.source}."
        lines += ["", textwrap.fill(f"Threshold {words}", _WIDTH)]
    return "\n".join(lines)
