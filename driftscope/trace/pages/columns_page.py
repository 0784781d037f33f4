"""Prints the columns of a trace as a page of the documentation.

    python -m driftscope.trace.pages.columns_page > docs/trace-format.md

Names and types come from the schema, meanings from the docstrings in
`driftscope.trace.records`. The part of a docstring after "None: " states the meaning of
null.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pyarrow as pa

from driftscope.trace import records, segments
from driftscope.trace.records import RECORDS, SCHEMA_VERSION
from driftscope.trace.schema import schema_of
from driftscope.trace.segments import SEALED, STREAM
from driftscope.vocabulary import BY_DEPTH, DISTANCE_MASS, MASSES

_SHAPES = {
    **dict.fromkeys(
        MASSES,
        "[k × layers], depth by depth",
    ),
    **dict.fromkeys((*BY_DEPTH, "token_ids"), "[k]"),
    **dict.fromkeys(("aux_rms", "aux_norm_rms"), "[captured layers]"),
    "head_mass": "[k × layers × heads × 5]",
    DISTANCE_MASS: "[k × layers × bins], depth by depth, then layer by layer",
    "gaps_s": "[pieces - 1]",
    **dict.fromkeys(("drafted", "accepted"), "[rounds]"),
    **dict.fromkeys(("region_starts", "region_codes", "region_languages"), "[regions]"),
    "region_boundaries": "[boundaries]",
    "region_copies": "[passages × 2]",
}
"""Shapes of columns that hold lists; every other column holds one value."""
_BY_ENDING = {
    "_s": "s",
    "_rms": "1 (RMS)",
    "_mass": "1 (share)",
    "_bytes": "By",
    "_tokens": "token",
    "_w": "W",
}
_UNITS = {
    "step": "1 (number)",
    "position": "token (index)",
    "batch": "request",
    "k": "token",
    "layers": "layer",
    "top1": "1 (probability)",
    "entropy": "nat",
    "token_ids": "token (id)",
    "rate": "1 (share)",
    "heads": "head",
    "replica": "1 (number)",
    "drafted": "token",
    **dict.fromkeys(("region_starts", "region_boundaries", "region_copies"), "token"),
    **dict.fromkeys(("region_codes", "region_languages"), "1 (code)"),
    "accepted": "token",
    "requests": "request",
    "chains": "chain",
    **dict.fromkeys(("known", "agreed", "served_agreed"), "token"),
    "temperature": "1",
    "gpu_busy": "1 (share)",
    "order": "1 (number)",
    "repeat": "1 (number)",
    "concurrency": "request",
    "status": "1 (HTTP status)",
    "attempts": "1",
}
_UNITS_IN = {("client", "rate"): "request/s"}
_HEAD = f"""# Trace format

Written by `python -m driftscope.trace.pages.columns_page` from
`driftscope/trace/records.py`. Schema version {SCHEMA_VERSION}: a new column raises the
minor version, a changed meaning the major one.

A run directory holds a `manifest.json` and, for each record and process, numbered segments:
`<record>-<process>-<number>`. A segment that is being written is an Arrow stream (`{STREAM}`); when
it is full, or the process ends, it is sealed as Parquet (`{SEALED}`). A run that was killed keeps
its last stream, which is readable as far as it was written. Each process has a
`status-<process>.json`, which counts the rows that it lost by cause (`dropped`); `lost` in the
manifest is the sum over the processes that have ended. If a run already has a process of the same
name, as with containers that share a folder, `.2` is added to the name of the second.

Depth is 1-based: the first element of every list by depth is depth 1. RMS is ‖x‖₂ / √dim. Times of
day are seconds since the Unix epoch. `examples/queries` asks five questions of
these files in plain DuckDB and in pandas.

## What sealed files leave out

A stream has every column below, exactly. A sealed file holds the same rows in less space:

- a time of day ({{times}}) is a Parquet timestamp in microseconds, UTC without a time zone;
- a measured number (each list of floats, {{measured}}) keeps 16 bits of its mantissa: a relative
  error of at most 2⁻¹⁷;
- a list that can be derived from others in every row of the segment is left out: its column is
  missing.
  The file's metadata names it under the key `{segments.DERIVED_KEY.decode()}`, JSON from the
  column to its origin:

| column left out | derived from | how to restore it |
|---|---|---|
| `fed_rms` | `prenorm_rms` or `postnorm_rms` | equal to that list |
| `in_rms` | `fed_rms` | `fc_rms`, then all but the last element of `fed_rms` |
| `generated_mass` | `complement` | 1 minus all other masses; null and NaN count as 0 |

`generated_mass` is restored with an absolute error of at most 1e-5, the other two bit for bit.

`driftscope.trace.reader.read_trace(path)` restores all of this as Arrow tables.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a record."""

    name: str
    type: str
    """Arrow type in the stream."""
    sealed: str
    """Parquet type in a sealed file if it differs; otherwise ""."""
    shape: str
    unit: str
    meaning: str
    null: str
    """Meaning of null; "" if the column is never null."""


def page() -> str:
    """Return the page."""
    head = _HEAD.replace("{times}", _named(segments.TIMES)).replace(
        "{measured}", _named(segments.MEASURED)
    )
    return head + "".join(_section(record) for record in RECORDS)


def columns_of(record: str) -> Iterator[Column]:
    """Yield the columns of a record, in order."""
    texts = docstrings(RECORDS[record].__name__)
    for field in schema_of(record):
        meaning, _, null = texts.get(field.name, "").partition("None: ")
        listed = pa.types.is_list(field.type)
        yield Column(
            name=field.name,
            type=f"list<{field.type.value_type}>" if listed else str(field.type),
            sealed="timestamp[us]" if field.name in segments.TIMES else "",
            shape=_SHAPES.get(field.name, "") if listed else "one value",
            unit=_unit(record, field),
            meaning=meaning.strip(),
            null=null.strip() if field.nullable else "",
        )


def _unit(record: str, field: pa.Field) -> str:
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return "–"
    if (record, field.name) in _UNITS_IN:
        return _UNITS_IN[record, field.name]
    ending = next((unit for end, unit in _BY_ENDING.items() if field.name.endswith(end)), "")
    return _UNITS.get(field.name, ending)


@cache
def docstrings(record: str) -> dict[str, str]:
    """Return the docstring below each field of the named record class, each as one line."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(records)).body
        if isinstance(node, ast.ClassDef) and node.name == record
    )
    texts = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            literal = ast.literal_eval(text.value)
            texts[ast.unparse(field.target)] = " ".join(str(literal).split())
    return texts


def _section(record: str) -> str:
    kind = RECORDS[record]
    words = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    rows = "".join(map(_row, columns_of(record)))
    return (
        f"\n## {record}\n\n{words}\n\n"
        "| column | type | in a sealed file | shape | unit | meaning | null |\n"
        f"|---|---|---|---|---|---|---|\n{rows}"
    )


def _row(column: Column) -> str:
    cells = (
        f"`{column.name}`",
        f"`{column.type}`",
        f"`{column.sealed}`" if column.sealed else "",
        column.shape,
        column.unit,
        column.meaning,
        column.null or "never",
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
