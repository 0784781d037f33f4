"""Runs that version 1.0 wrote: their rows, with the documented defaults for what came later."""

from __future__ import annotations

import json
import shutil
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from driftscope.pipeline import summarise
from driftscope.trace.format.manifest import MANIFEST
from driftscope.trace.format.records import RECORDS
from driftscope.trace.read.reader import read_trace

DATA = Path(__file__).parent / "data"
RUNS = ("run-1.0", "run-1.0-killed")
LATER = ("client",)
"""Records that were added since."""
FROM_MANIFEST = {"rate": 0.5, "execution": "eager"}
"""These runs recorded every second draft step."""


@pytest.mark.parametrize("name", RUNS)
def test_columns_that_came_later_read_as_their_default(name: str) -> None:
    trace = read_trace(DATA / name)
    for record, kind in RECORDS.items():
        table = getattr(trace, record)
        if record in LATER:
            assert table.num_rows == 0
            continue
        assert table.num_rows > 0
        later = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
        for column, default in later.items():
            expected = FROM_MANIFEST.get(column, default)
            assert set(table.column(column).to_pylist()) == {expected}, (record, column)


def test_both_ways_of_writing_hold_the_same_rows() -> None:
    sealed, killed = (read_trace(DATA / name) for name in RUNS)
    assert sealed.draft.column("fed_rms").to_pylist() == killed.draft.column("fed_rms").to_pylist()
    assert sealed.draft.column("time_s").to_pylist() == killed.draft.column("time_s").to_pylist()


def test_the_manifest_says_what_was_not_asked_then() -> None:
    manifest = read_trace(DATA / "run-1.0").manifest
    assert manifest.schema_version == "1.0"
    assert manifest.sink_slots == (0,)
    assert (manifest.query_kind, manifest.attention_strategy) == ("depth", "keys")
    assert (manifest.rank, manifest.tensor_parallel, manifest.data_parallel) == (0, 1, 1)
    assert (manifest.per_head, manifest.budget) == (False, None)


def test_keys_that_were_renamed_since_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(DATA / "run-1.0", run)
    raw = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**raw, "tp_rank": 1, "tp_size": 2, "sink_tokens": 3}))
    manifest = read_trace(run).manifest
    assert (manifest.rank, manifest.tensor_parallel) == (1, 2)
    assert manifest.sink_slots == (0, 1, 2)


@pytest.mark.parametrize("name", RUNS)
def test_they_can_be_analysed(name: str) -> None:
    run = summarise(read_trace(DATA / name), "old")
    assert run.recording.broken_chains == 0
    assert run.attention.sink_mass is not None
    assert run.hidden.growth == pytest.approx(2.5, rel=1e-5)


@pytest.mark.parametrize(("source", "slots"), [("found", ()), ("sought", ()), ("given", (0,))])
def test_no_slots_mean_no_sink_only_where_one_was_looked_for(
    tmp_path: Path, source: str, slots: tuple[int, ...]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(DATA / "run-1.0", run)
    raw = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**raw, "sink_slots": [], "sink_source": source}))
    manifest = read_trace(run).manifest
    assert manifest.sink_slots == slots
    assert manifest.sinkless is (source == "found")
