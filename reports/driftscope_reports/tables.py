"""Tables of the report."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.words import number
from driftscope_reports.markup import Child, Markup, el

DepthRow = tuple[str, str, Sequence[float | None] | None]
"""(run, quantity, values by depth); values are None where the quantity does not exist."""


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], *, words: int = 1) -> Markup:
    """A table whose first `words` columns are words and the rest numbers; scrolls when wide."""
    return el(
        "div",
        el(
            "table",
            el("thead", el("tr", [_head(i, name, words) for i, name in enumerate(head)])),
            el("tbody", [_row(row, words) for row in rows]),
        ),
        class_="scroll",
        tabindex="0",
    )


def by_depth(rows: Sequence[DepthRow], digits: int = 3) -> Markup:
    """One column per depth."""
    depths = max((len(values) for _, _, values in rows if values is not None), default=0)
    return table(
        ["run", "quantity", *(f"depth {depth}" for depth in range(1, depths + 1))],
        [[run, name, *_cells(values, depths, digits)] for run, name, values in rows],
        words=2,
    )


def _cells(values: Sequence[float | None] | None, depths: int, digits: int) -> list[str]:
    cells = [number(value, digits) for value in values or ()]
    return cells + [number(None)] * (depths - len(cells))


def _head(index: int, name: str, words: int) -> Markup:
    return el("th", name, scope="col", class_=None if index < words else "number")


def _row(row: Sequence[Child], words: int) -> Markup:
    first = el("th", row[0], scope="row")
    rest = [
        el("td", cell, class_=None if i < words else "number")
        for i, cell in enumerate(row[1:], start=1)
    ]
    return el("tr", first, rest)
