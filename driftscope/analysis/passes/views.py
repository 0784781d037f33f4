"""Views that queries read, as unbound tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import queried

if TYPE_CHECKING:
    import ibis.expr.types as ir

REQUEST = ("replica", "request")
"""Columns that identify a request: independent replicas may use the same request names."""
CLUSTERS = "clusters"
"""Name of the view that assigns each request to its cluster."""
LOOKED_AT = "looked_at"
"""Name of the view of the requests whose chains are compared with their rounds, one by one."""
SUSPECTS = "suspects"
"""Name of the view of some requests, numbered, that are examined more closely."""


def table(name: str, record: str | None = None, **more: str) -> ir.Table:
    """Return the view `name`, with the columns of a record, and with `more` columns by name and
    type."""
    import ibis

    schema = ibis.Schema.from_pyarrow(queried(record or name))
    return ibis.table({**dict(schema.items()), **more}, name=name)


def steps_of(name: str) -> str:
    """Return the name of the view of the steps of a sample of requests."""
    return f"{name}_steps"


def sampled(rows: ir.Table, name: str, in_steps: bool) -> ir.Table:
    """Return those of the `rows`, chains, that belong to the requests in the view `name`, with the
    number of their request; see `driftscope.analysis.figures.chain_sample`.

    `in_steps`: the steps of these requests are in a view, too. They select the same rows sooner,
    because an engine skips the parts of a file whose steps it need not read.
    """
    import ibis

    if in_steps:
        steps = ibis.table({"step": "int64"}, name=steps_of(name))
        rows = rows.semi_join(steps, "step")
    return rows.join(clusters(name), REQUEST)


def clusters(name: str = CLUSTERS) -> ir.Table:
    """Return a view that numbers requests."""
    import ibis

    columns = {"replica": "int64", "request": "string", "cluster": "int64"}
    return ibis.table(columns, name=name)
