"""Convert runs of trace schema 1.x in place: `python tests/support/convert_runs.py FOLDER...`.

FOLDER is a run or holds runs at any depth. Every column of 2.0 is in every file: a column that the
run was recorded without gets the value that it meant, and each row states its execution. Rows and
figures stay as they are.
"""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.records import RECORDS, SCHEMA_VERSION
from driftscope.trace.schema import schema_of
from driftscope.trace.segments import (
    SEALED,
    STREAM,
    VERSION_KEY,
    ZSTD_LEVEL,
    derived_of,
    digest_of,
    encodings,
)
from driftscope.trace.streams import END, StreamFile
from driftscope.vocabulary import Execution

RENAMED = {"tp_rank": "rank", "tp_size": "tensor_parallel"}
"""Keys of a manifest of version 1.0 that were renamed."""
WITHOUT_SINK = ("found", "sought")
"""Values of `sink_source` with which no sink slots mean that there are none."""


def convert(run: Path) -> bool:
    """Convert one run directory; return whether it was of schema 1.x."""
    path = run / MANIFEST
    raw = json.loads(path.read_text(encoding="utf-8"))
    if not str(raw["schema_version"]).startswith("1."):
        return False
    raw = {RENAMED.get(name, name): value for name, value in raw.items()}
    if not raw.get("sink_slots") and raw["sink_source"] not in WITHOUT_SINK:
        raw["sink_slots"] = list(range(raw["sink_tokens"]))
    for record in RECORDS:
        for sealed in run.glob(f"{record}-*{SEALED}"):
            _convert_sealed(sealed, record, raw)
        for stream in run.glob(f"{record}-*{STREAM}"):
            _convert_stream(stream, record, raw)
    for status in run.glob("status-*.json"):
        content = json.loads(status.read_text(encoding="utf-8"))
        if content.get("digests"):
            content["digests"] = {name: digest_of(run / name) for name in content["digests"]}
            status.write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")
    text = json.dumps({**raw, "schema_version": SCHEMA_VERSION}, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    return True


def _convert_sealed(path: Path, record: str, manifest: dict[str, Any]) -> None:
    table = pq.read_table(path)
    table = _completed(table, record, manifest, left_out=set(derived_of(table.schema)))
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        write_statistics=["step"],
        write_page_checksum=True,
        **encodings(table),
    )


def _convert_stream(path: Path, record: str, manifest: dict[str, Any]) -> None:
    """Rewrite a stream up to its first torn batch, and tear the new one in the same place."""
    closed = path.read_bytes().endswith(END)
    batches, torn = [], False
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        schema = reader.schema
        try:
            batches += list(reader)
        except (pa.ArrowException, OSError):
            torn = True
    table = _completed(pa.Table.from_batches(batches, schema), record, manifest, left_out=set())
    path.unlink()
    stream = StreamFile(path, schema_of(record).with_metadata(table.schema.metadata))
    for batch in table.cast(schema_of(record)).to_batches():
        stream.append(batch)
    if closed:
        stream.close()
    elif torn:
        with path.open("ab") as file:
            file.write(END[:4] + b"\x00\x01")


def _completed(
    table: pa.Table, record: str, manifest: dict[str, Any], left_out: set[str]
) -> pa.Table:
    """Return the rows with all columns of the record but those `left_out`, which follow from
    others."""
    defaults = {f.name: f.default for f in fields(RECORDS[record]) if f.default is not MISSING}
    execution = Execution.OF_MODE.get(manifest["mode"], Execution.UNSEEN)
    defaults |= {"rate": 1.0 / max(manifest.get("every", 1), 1), "execution": execution}
    columns: dict[str, Any] = {}
    for field in schema_of(record):
        name = field.name
        if name in left_out:
            continue
        if name not in table.column_names:
            columns[name] = pa.repeat(pa.scalar(defaults[name], field.type), table.num_rows)
        elif name == "execution":
            told = [mode or execution for mode in table.column(name).to_pylist()]
            columns[name] = pa.array(told, field.type)
        else:
            columns[name] = table.column(name)
    notes = {**(table.schema.metadata or {}), VERSION_KEY: SCHEMA_VERSION.encode()}
    return pa.table(columns).replace_schema_metadata(notes)


if __name__ == "__main__":
    found = [path.parent for name in sys.argv[1:] for path in sorted(Path(name).rglob(MANIFEST))]
    for folder in found:
        print(f"{folder}: {'converted' if convert(folder) else 'left as it is'}")
