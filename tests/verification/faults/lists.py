"""Put nulls into the lists of a run, and odd runs into a folder that is listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pyarrow as pa

from driftscope.errors import EXIT_OK, DriftscopeError
from driftscope.trace.reader import read_trace
from verification.faults.command import outcome_of
from verification.faults.mutations import MUTATIONS, table_of, write_table


def _with_nulls(random: Random, sound: Path, folder: Path) -> Path:
    """Return a copy of a run in which some elements of a list column are null."""
    run = Path(shutil.copytree(sound, folder / "run"))
    path = random.choice(sorted(p for p in run.iterdir() if p.suffix in (".parquet", ".arrows")))
    table = table_of(path)
    lists = [f for f in table.schema if pa.types.is_list(f.type)]
    if lists:
        field, share = random.choice(lists), random.choice((0.05, 0.5, 1.1))
        rows = [
            values and [None if random.random() < share else value for value in values]
            for values in table.column(field.name).to_pylist()
        ]
        at = table.schema.get_field_index(field.name)
        write_table(path, table.set_column(at, field, pa.array(rows, field.type)))
    for status in run.glob("status-*.json"):  # it describes the original file
        status.write_text(json.dumps({**json.loads(status.read_text()), "digests": {}}))
    return run


def read_nulls(random: Random, sound: Path, folder: Path) -> None:
    """Null elements are NaN, or the file is refused."""
    try:
        trace = read_trace(_with_nulls(random, sound, folder))
    except DriftscopeError as error:
        assert "\n" not in str(error)
        return
    for table in (trace.draft, trace.verify, trace.request, trace.client):
        for field in table.schema:
            if pa.types.is_list(field.type):
                flat = table.column(field.name).combine_chunks().flatten()
                assert not flat.null_count, f"{field.name} has nulls"


def analyse_nulls(random: Random, sound: Path, folder: Path) -> None:
    """A run with null elements is analysed, or refused in one line."""
    run = _with_nulls(random, sound, folder)
    done = outcome_of(["analyze", run, "-q", "-o", folder / "r.html", "--json"])
    assert "Warning" not in done.err


def list_runs(random: Random, sound: Path, folder: Path) -> None:
    """`ls` lists every run, whatever is wrong with some of them."""
    runs = folder / "runs"
    for number in range(4):
        run = Path(shutil.copytree(sound, runs / f"{number}" / "run"))
        if number:
            MUTATIONS[random.choice(("bits", "json values", "columns", "files"))](run, random)
    done = outcome_of(["ls", runs, "--json"])
    assert done.code == EXIT_OK and "Warning" not in done.err
    assert any("/0/run" in entry["path"] for entry in json.loads(done.out)["runs"])
