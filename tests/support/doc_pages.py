"""Write the tables of docs/ that follow from the code, between their markers; run by `make pages`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest of a page is edited.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from driftscope.findings.case import Entry
from driftscope.findings.catalogue import CATALOGUE, REPLAYS
from driftscope.inspect.drafter_classes import CLASSES, Coverage
from driftscope.telemetry.instruments import COUNTER, INSTRUMENTS, Instrument
from driftscope.telemetry.prometheus import metric_name
from driftscope.trace.records import RECORDS
from driftscope.trace.schema import FIGURE, HASHED, TRACEPARENT, kind_of, schema_of

DOCS = Path(__file__).parents[2] / "docs"
PROBE_RECORDS = ("draft", "verify", "step", "request", "resource")
"""Records that a probe in an engine writes; a replay writes the others."""
HIDDEN = {**dict.fromkeys(HASHED, ", hashed"), TRACEPARENT: "; null with identifiers off"}
"""Contents of columns of the probe's records under DRIFTSCOPE_IDENTIFIERS=off."""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as Markdown."""
    lines = [list(heads), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def metrics() -> str:
    """Return every metric that driftscope exports."""
    heads = ("metric, and its name in Prometheus", "kind", "attributes", "meaning")
    return table(heads, map(_metric, INSTRUMENTS.values()))


def _metric(instrument: Instrument) -> tuple[str, ...]:
    total = "_total" if instrument.kind == COUNTER else ""
    return (
        f"`{instrument.name}`<br>`{metric_name(instrument)}{total}`",
        f"{instrument.kind}, {instrument.unit}",
        ", ".join(f"`{name}`" for name in instrument.attributes),
        instrument.description,
    )


def columns() -> str:
    """Return the columns of each record of a trace.

    Names and types come from the schema, meanings from the docstrings of the records' fields. The
    part of a docstring after "None: " is the meaning of null. The kind follows the type of a column
    that is no figure.
    """
    heads = ("column", "type", "meaning")
    return "".join(
        f"\n## {name}\n\n{_first_paragraph(record)}\n\n{table(heads, _columns_of(name, record))}"
        for name, record in RECORDS.items()
    )


def _columns_of(name: str, record: type) -> Iterator[tuple[str, ...]]:
    meanings = field_docstrings(record)
    for column in schema_of(name):
        meaning, _, null = meanings[column.name].partition("None: ")
        listed = pa.types.is_list(column.type)
        kind = kind_of(name, column.name)
        words = [f"`list<{column.type.value_type}>`" if listed else f"`{column.type}`"]
        if kind != FIGURE:
            words.append(kind + (HIDDEN.get(column.name, "") if name in PROBE_RECORDS else ""))
        null = f" Null: {null.strip()}" if column.nullable else ""
        yield f"`{column.name}`", ", ".join(words), meaning.strip() + null


def field_docstrings(scope: type | ModuleType) -> dict[str, str]:
    """Return the docstring below each assignment of a module or class, and of classes in it, each
    as one line."""
    texts = {}
    for part in ast.walk(ast.parse(inspect.getsource(scope))):
        if isinstance(part, ast.Module | ast.ClassDef):
            for statement, text in pairwise(part.body):
                if isinstance(statement, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
                    name = re.split("[ :=]", ast.unparse(statement))[0]
                    texts[name] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def _first_paragraph(record: type) -> str:
    return " ".join((inspect.getdoc(record) or "").split("\n\n")[0].split())


def findings() -> str:
    """Return the catalogue of findings, a section each."""
    return "".join(map(_finding, (*CATALOGUE.values(), *REPLAYS.values())))


def _finding(entry: Entry[Any]) -> str:
    thresholds = ", ".join(f"`{one.name}` = {one.value:g}" for one in entry.thresholds)
    return f"\n## {entry.id}\n\n**{entry.title}.** {entry.meaning}\n" + (
        f"\nThresholds: {thresholds}.\n" if thresholds else ""
    )


def drafters() -> str:
    """Return the drafters of vLLM, by how much is compared without an engine."""
    named = {
        coverage: ", ".join(dict.fromkeys(r.name for r in CLASSES if r.coverage is coverage))
        for coverage in Coverage
    }
    rows = ((coverage, names or "every other class") for coverage, names in named.items())
    return table(("without an engine", "drafters"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "metrics": metrics,
    "columns": columns,
    "findings": findings,
    "drafters": drafters,
}
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
