"""The catalogue of findings as a table, as JSON and as a page of the documentation."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from driftscope.boundary.json_document import layout
from driftscope.boundary.text import output_console
from driftscope.findings.case import Entry, Threshold
from driftscope.findings.catalogue import CATALOGUE, REPLAYS

_PIPE_WIDTH = 160
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_INTRODUCTION = """# Findings

The catalogue of what `driftscope analyze` can find in a run or a replay. `driftscope check
--fail-on ID` fails on any of them. Written by `driftscope findings --markdown`.

Each finding has a statement with its numbers, evidence with 95 % intervals, a confidence with the
reason for it, and advice, with the vLLM option to paste where there is one. If the cost model can
estimate it, the finding also states its cost in output tokens per second.

Findings that ask for action come first, the most expensive first. If a run lacks the data that a
finding needs, the finding is left undecided, and `check` reports it as such.

A drafter is called dead if next to nothing that it drafts is accepted. The finding lists the
possible causes to check: those that the recording supports first, then by how often they occur.
"""


_ALL: tuple[Entry[Any], ...] = (*CATALOGUE.values(), *REPLAYS.values())


def show() -> None:
    """Print the table to stdout."""
    console = output_console(_PIPE_WIDTH)
    table = Table(pad_edge=False, show_lines=True)
    for name in ("id", "meaning", "threshold", "source"):
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for entry in _ALL:
        stated = "\n".join(_stated(each) for each in entry.thresholds) or "none"
        sources = "\n".join(each.source for each in entry.thresholds)
        table.add_row(entry.id, entry.meaning, stated, sources)
    console.print(table)


def to_json() -> str:
    """Return the entries by id, with a newline at the end."""
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
        for entry in _ALL
    }
    return layout(content)


def to_markdown() -> str:
    """Return the page, with a newline at the end."""
    return "\n".join([_INTRODUCTION, *(_section(entry) for entry in _ALL)])


def _section(entry: Entry[Any]) -> str:
    lines = [f"## {entry.id}", "", f"**{entry.title}.** {entry.meaning}", ""]
    lines += [f"Needs: {entry.need.words}.", ""]
    lines += [
        f"- `{t.name}` = {t.value:g}: {t.means}. Source: {t.source}." for t in entry.thresholds
    ]
    return "\n".join([*lines, ""] if entry.thresholds else lines)


def _stated(threshold: Threshold) -> str:
    return f"{threshold.value:g} ({threshold.means})"
