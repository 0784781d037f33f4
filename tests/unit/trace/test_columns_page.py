"""The tables of the trace's columns are complete, and true of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.doc_pages import DOCS, field_docstrings
from support.runs import Spec, write_run

from driftscope.trace.reader import read_trace
from driftscope.trace.records import RECORDS, SCHEMA_VERSION
from driftscope.trace.schema import schema_of
from driftscope.trace.segments import DERIVED_KEY, MEASURED, TIMES

PAGE = (DOCS / "trace-format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("record", RECORDS)
def test_every_column_has_a_meaning_and_every_null_a_reason(record: str) -> None:
    section = PAGE.split(f"\n## {record}\n")[1].split("\n## ")[0]
    meanings = field_docstrings(RECORDS[record])
    for field in schema_of(record):
        assert f"| `{field.name}` |" in section
        meaning, _, null = meanings[field.name].partition("None: ")
        assert len(meaning.split()) > 2, f"{record}.{field.name} has no meaning"
        assert bool(null) is field.nullable, f"{record}.{field.name}: what null means"


def test_sealed_files_are_as_the_page_says(tmp_path: Path) -> None:
    """Types, the timestamps, and which columns are left out."""
    assert f"Schema version {SCHEMA_VERSION}:" in PAGE
    assert all(f"`{name}`" in PAGE.partition("\n## draft\n")[0] for name in (*TIMES, *MEASURED))
    run = write_run(tmp_path / "run", Spec())
    left_out = set()
    for record in RECORDS:
        for path in run.glob(f"{record}-*.parquet"):
            file = pq.read_schema(path)
            derived = json.loads((file.metadata or {}).get(DERIVED_KEY, b"{}"))
            for field in schema_of(record):
                if field.name in derived:
                    assert field.name not in file.names
                    left_out.add(field.name)
                    continue
                kind = file.field(field.name).type
                wanted = pa.timestamp("us") if field.name in TIMES else field.type
                if pa.types.is_list(kind):
                    kind, wanted = kind.value_type, wanted.value_type
                assert kind == wanted
    assert left_out == {"fed_rms", "generated_mass"}
    restored = read_trace(run).draft
    assert restored.column("fed_rms").to_pylist() == restored.column("prenorm_rms").to_pylist()
