"""Write the tables of docs/ that follow from the code, between their markers; run by `make pages`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest of a page is edited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from driftscope.telemetry.instruments import COUNTER, HISTOGRAM, INSTRUMENTS, Instrument
from driftscope.telemetry.prometheus import metric_name

DOCS = Path(__file__).parents[2] / "docs"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as Markdown."""
    lines = [list(heads), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def metrics() -> str:
    """Return every metric that driftscope exports."""
    heads = ("metric", "in Prometheus", "unit", "kind", "attributes", "bounds of buckets")
    words = "".join(f"- `{one.name}`: {one.description}\n" for one in INSTRUMENTS.values())
    return f"{table(heads, map(_metric, INSTRUMENTS.values()))}\n## In words\n\n{words}"


def _metric(instrument: Instrument) -> tuple[str, ...]:
    bounds = ", ".join(f"{bound:g}" for bound in instrument.bounds)
    if instrument.kind == HISTOGRAM and not bounds:
        bounds = "none: sum and count"
    return (
        f"`{instrument.name}`",
        f"`{metric_name(instrument)}{'_total' if instrument.kind == COUNTER else ''}`",
        instrument.unit,
        instrument.kind,
        ", ".join(f"`{name}`" for name in instrument.attributes),
        bounds,
    )


TABLES: Mapping[str, Callable[[], str]] = {"metrics": metrics}
"""Tables by the names in their markers."""
_MARKED = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its tables as they are in the code."""
    return _MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def main() -> None:
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
