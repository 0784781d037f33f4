"""A run as a newer minor version of driftscope would write it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.trace.manifest import MANIFEST
from driftscope.trace.segments import VERSION_KEY

VERSION = "3.99"


def make_newer(run: Path) -> Path:
    """Give every file of a closed run what this version does not know; return the run."""
    for path in list(run.glob("*.parquet")):
        table = pq.read_table(path)
        texts = pa.array(["x"] * table.num_rows)
        lists = pa.array([[1.0, None]] * table.num_rows)
        more = table.append_column("later_text", texts).append_column("later_list", lists)
        backwards = more.select(more.column_names[::-1])
        notes = {**(table.schema.metadata or {}), VERSION_KEY: VERSION.encode(), b"later": b"1"}
        pq.write_table(backwards.replace_schema_metadata(notes), path)
    for path in [run / MANIFEST, *run.glob("status-*.json")]:
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**content, "later": {"a": [1]}}), encoding="utf-8")
    manifest = json.loads((run / MANIFEST).read_text(encoding="utf-8"))
    manifest["schema_version"] = VERSION
    (run / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    pq.write_table(pa.table({"later": [1]}), run / "later-worker0-1-0000.parquet")
    return run
