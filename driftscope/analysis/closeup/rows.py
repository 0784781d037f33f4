"""The few rows of a run that a close-up looks at one by one, always in the same order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from driftscope.analysis import passes
from driftscope.analysis.columns import whole
from driftscope.analysis.tables import PART, Tables
from driftscope.trace.compact import DERIVED_KEY, restore

if TYPE_CHECKING:
    import ibis.expr.types as ir

ROUND_COLUMNS = (*passes.REQUEST, "time_s", "position", "drafted", "accepted", "reason")
STEPS = 100_000
"""Steps whose durations are looked at, evenly from all."""
HEAD_CHAINS = 10_000
"""Chains that means by head are taken over, evenly from all: 64 heads of each are 10 kB."""


def rounds_of_requests(tables: Tables, names: Sequence[str]) -> pa.Table:
    """Decode steps of the requests of these names, whatever their replica."""
    rows = passes.table("verify")
    found = tables.engine.rows(_of(rows, names).select(*ROUND_COLUMNS))
    return _sorted(found, "time_s", "replica", "request", "position")


def chains_of_requests(tables: Tables, names: Sequence[str]) -> pa.Table:
    """Recorded chains of these requests, with the lists that files leave out."""
    parts = []
    for derived in tables.parts:
        tables.use(derived)
        rows = tables.engine.rows(_of(passes.table(PART, "draft"), names))
        there = rows.drop_columns([name for name, _ in derived])
        metadata = {DERIVED_KEY: json.dumps(dict(derived)).encode()}
        whole_rows = restore(there.replace_schema_metadata(metadata))
        parts.append(whole_rows.select(rows.column_names).replace_schema_metadata(None))
    found = pa.concat_tables(parts, promote_options="permissive")
    return _sorted(found, "time_s", "replica", "request", "position")


def steps_that_drafted(tables: Tables) -> pa.Table:
    """Their durations, of every so many-th step where there are many."""
    rows = passes.table("step")
    many = int(whole(tables.engine.rows(passes.kinds_of_steps()), "rows").sum())
    drew = rows.filter((rows.chains > 0) & (rows.step % _every(many, STEPS) == 0))
    found = tables.engine.rows(drew.select("step", "replica", "step_s", "draft_s", "probe_s"))
    return _sorted(found, "step", "replica", "step_s", "draft_s")


def chains_by_head(tables: Tables, chains: int) -> pa.Table:
    """Chains with masses by head, of every so many-th step where there are many."""
    rows = passes.table("draft")
    there = rows.filter(
        rows[passes.BY_HEAD].notnull() & (rows.step % _every(chains, HEAD_CHAINS) == 0)
    )
    columns = (*passes.REQUEST, "step", "layers", "heads", passes.BY_HEAD)
    found = tables.engine.rows(there.select(*columns))
    return _sorted(found, "step", "replica", "request")


def _of(rows: ir.Table, names: Sequence[str]) -> ir.Table:
    return rows.filter(rows.request.isin(sorted(set(names))))


def _every(many: int, wanted: int) -> int:
    return max(1, -(-many // wanted))


def _sorted(found: pa.Table, *names: str) -> pa.Table:
    return found.sort_by([(name, "ascending") for name in names])
