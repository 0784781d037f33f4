"""Queries for the few rows of a run that a close-up shows one by one, always in the same order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.passes.kinds import BY_HEAD, kinds_of_steps
from driftscope.analysis.passes.views import REQUEST, table
from driftscope.analysis.query.column_arrays import whole
from driftscope.analysis.query.record_views import PART, Derived, Tables
from driftscope.boundary import strict_json
from driftscope.boundary.file_input import first_line
from driftscope.errors import DamagedTraceError
from driftscope.trace.format.derived_columns import DERIVED_KEY, restore
from driftscope.vocabulary import AUX, DISTANCE_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

ROUND_COLUMNS = (*REQUEST, "time_s", "position", "drafted", "accepted", "reason")
NOT_OPENED = ("top1", "entropy", *AUX, BY_HEAD, DISTANCE_MASS)
"""List columns of chains that a close-up of single requests does not show."""
STEPS = 100_000
"""Number of steps whose durations are read, taken evenly from all steps."""
ONE_BY_ONE = 1_000_000
"""Number of chains in a run above which the chains of single requests are found by their steps."""
HEAD_CHAINS = 10_000
"""Number of chains for means by head, taken evenly from all chains: 64 heads of each are 10 kB."""


def rounds_of_requests(tables: Tables, names: Sequence[str]) -> pa.Table:
    """Return the decode steps of the requests with these names, on any replica."""
    rows = table("verify")
    rounds = tables.engine.rows(_of(rows, names).select(*ROUND_COLUMNS))
    return _sorted(rounds, "time_s", "replica", "request", "position")


def chains_of_requests(
    tables: Tables, names: Sequence[str], drafted_in: NDArray[np.int64], chains: int
) -> pa.Table:
    """Return the recorded chains of these requests, with the list columns that files leave out.

    `drafted_in`, [requests, 2], holds the first and last step of each request. In a run of many
    `chains` only these steps are searched, request by request, so that most files are not read at
    all.
    """
    rows = table(PART, "draft").drop(*NOT_OPENED)
    query = _of(rows, names)
    if chains > ONE_BY_ONE:
        each = [
            _of(rows, [name]).filter(rows.step.between(first, last))
            for name, (first, last) in zip(names, drafted_in.tolist(), strict=True)
        ]
        query = functools.reduce(lambda a, b: a.union(b), each)
    parts = []
    for derived in tables.parts:
        tables.use(derived)
        try:
            parts.append(_restored(tables.engine.rows(query), derived))
        except ValueError as error:
            raise DamagedTraceError(
                f"{tables.path}: a draft file lacks columns that others are made from "
                f"({first_line(error)}); move it away to analyse the rest of the run"
            ) from error
    recorded_chains = pa.concat_tables(parts, promote_options="permissive")
    return _sorted(recorded_chains, "time_s", "replica", "request", "position")


def _restored(rows: pa.Table, derived: Derived) -> pa.Table:
    """Return the rows with the list columns that their files leave out."""
    there = rows.drop_columns([name for name, _ in derived])
    metadata = {DERIVED_KEY: strict_json.dumps(dict(derived)).encode()}
    whole_rows = restore(there.replace_schema_metadata(metadata))
    return whole_rows.select(rows.column_names).replace_schema_metadata(None)


def texts_of_requests(tables: Tables, names: Sequence[str]) -> pa.Table:
    """Return the kinds of text of the answers of these requests, one row each."""
    rows = table("request")
    columns = (*REQUEST, "prompt_tokens", "region_starts", "region_codes", "region_copies")
    return tables.engine.rows(_of(rows, names).select(*columns))


def steps_that_drafted(tables: Tables) -> pa.Table:
    """Return the durations of steps that drafted, of every n-th step if there are many."""
    rows = table("step")
    many = int(whole(tables.engine.rows(kinds_of_steps()), "rows").sum())
    drew = rows.filter((rows.chains > 0) & (rows.step % _every(many, STEPS) == 0))
    steps = tables.engine.rows(drew.select("step", "replica", "step_s", "draft_s", "probe_s"))
    return _sorted(steps, "step", "replica", "step_s", "draft_s")


def chains_by_head(tables: Tables, chains: int) -> pa.Table:
    """Return the chains with masses by head, of every n-th step if there are many chains."""
    rows = table("draft")
    there = rows.filter(rows[BY_HEAD].notnull() & (rows.step % _every(chains, HEAD_CHAINS) == 0))
    columns = (*REQUEST, "step", "layers", "heads", BY_HEAD)
    masses_by_head = tables.engine.rows(there.select(*columns))
    return _sorted(masses_by_head, "step", "replica", "request")


def _of(rows: ir.Table, names: Sequence[str]) -> ir.Table:
    return rows.filter(rows.request.isin(sorted(set(names))))


def _every(many: int, wanted: int) -> int:
    return max(1, -(-many // wanted))


def _sorted(rows: pa.Table, *names: str) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in names])
