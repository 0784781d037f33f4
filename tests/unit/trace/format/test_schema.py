"""The columns of a trace are a contract: what they are called, their types and what may be null."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from support.runs import Spec, rows

from driftscope.trace.records import RECORDS, SCHEMA_VERSION
from driftscope.trace.schema import conform, record_of, schema_of, to_batch

GOLDEN = Path(__file__).parents[1] / "data" / "columns.json"


def _described(record: str) -> dict[str, str]:
    return {f.name: f"{f.type}{'' if f.nullable else ' not null'}" for f in schema_of(record)}


def test_columns_change_only_on_purpose() -> None:
    """A new column raises the minor version, a changed one the major: see SCHEMA_VERSION."""
    golden = json.loads(GOLDEN.read_text())
    assert golden == {
        "schema_version": SCHEMA_VERSION,
        "records": {record: _described(record) for record in RECORDS},
    }


@pytest.mark.parametrize("record", RECORDS)
def test_columns_are_the_fields_of_the_record(record: str) -> None:
    assert schema_of(record).names == [f.name for f in fields(RECORDS[record])]


def test_unknown_record() -> None:
    with pytest.raises(KeyError):
        schema_of("drafts")


def test_a_row_knows_its_record() -> None:
    content = list(rows(Spec(requests=1)))
    assert {record_of(row) for row in content} == set(RECORDS) - {"client"}
    for row in content:
        assert isinstance(row, RECORDS[record_of(row)])


def test_a_missing_list_is_null_and_an_empty_one_is_not() -> None:
    (draft,) = [row for row in rows(Spec(requests=1, rounds=0)) if record_of(row) == "draft"]
    batch = to_batch("draft", [draft])
    assert batch.column("null_mass").null_count == 1
    assert batch.column("sink_mass").null_count == 0


def test_a_table_of_another_minor_version_gets_this_versions_columns() -> None:
    (draft,) = [row for row in rows(Spec(requests=1, rounds=0)) if record_of(row) == "draft"]
    table = pa.Table.from_batches([to_batch("draft", [draft])])
    newer = table.append_column("from_the_future", pa.array(["x"]))
    assert conform(newer, "draft").column_names == schema_of("draft").names
    assert conform(newer, "draft").to_pylist() == table.to_pylist()
    with pytest.raises(KeyError, match="entropy"):
        conform(table.drop_columns(["entropy"]), "draft")
