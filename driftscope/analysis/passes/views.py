"""The views that queries read, as unbound tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import queried

if TYPE_CHECKING:
    import ibis.expr.types as ir

REQUEST = ("replica", "request")
"""What names a request: replicas that know nothing of each other name them alike."""
CLUSTERS = "clusters"
"""A view that says which cluster each request belongs to."""
LOOKED_AT = "looked_at"
"""A view of the requests whose chains are held against their rounds, one by one."""
SUSPECTS = "suspects"
"""A view of some requests, numbered, that are looked at more closely."""


def table(name: str, record: str | None = None, **more: str) -> ir.Table:
    """The view `name`, which has the columns of a record, and `more` by name and type."""
    import ibis

    schema = ibis.Schema.from_pyarrow(queried(record or name))
    return ibis.table({**dict(schema.items()), **more}, name=name)


def clusters(name: str = CLUSTERS) -> ir.Table:
    """A view that numbers requests."""
    import ibis

    columns = {"replica": "int64", "request": "string", "cluster": "int64"}
    return ibis.table(columns, name=name)
