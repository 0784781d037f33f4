"""The page of the trace's columns: complete, up to date, and true of the files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs import Spec, write_run

from driftscope.trace.pages.columns_page import columns_of, page
from driftscope.trace.reader import read_trace
from driftscope.trace.records import RECORDS
from driftscope.trace.schema import schema_of
from driftscope.trace.segments import DERIVED_KEY

PAGE = Path(__file__).parents[4] / "docs" / "trace-format.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("record", RECORDS)
def test_every_column_is_on_the_page(record: str) -> None:
    schema, columns = schema_of(record), list(columns_of(record))
    assert [column.name for column in columns] == schema.names
    section = page().split(f"\n## {record}\n")[1].split("\n## ")[0]
    for column, field in zip(columns, schema, strict=True):
        assert f"| `{column.name}` |" in section
        assert len(column.meaning.split()) > 2, f"{record}.{column.name} has no meaning"
        assert column.unit, f"{record}.{column.name} has no unit"
        assert column.shape, f"{record}.{column.name} has no shape"
        assert bool(column.null) is field.nullable, f"{record}.{column.name}: what null means"


def test_sealed_files_are_as_the_page_says(tmp_path: Path) -> None:
    """Types, the timestamps, and which columns are left out."""
    run = write_run(tmp_path / "run", Spec())
    seen = set()
    for record in RECORDS:
        for path in run.glob(f"{record}-*.parquet"):
            file = pq.read_schema(path)
            derived = json.loads((file.metadata or {}).get(DERIVED_KEY, b"{}"))
            for column in columns_of(record):
                if column.name in derived:
                    assert column.name not in file.names
                    seen.add(column.name)
                    continue
                kind = file.field(column.name).type
                wanted = column.sealed or column.type
                assert (
                    f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)
                ) == wanted
    assert seen == {"fed_rms", "generated_mass"}, "what this run leaves out"
    restored = read_trace(run).draft
    assert restored.column("fed_rms").to_pylist() == restored.column("prenorm_rms").to_pylist()
