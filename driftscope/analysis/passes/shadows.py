"""A pass over chains that were drafted under an intervention and not served."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.passes.views import REQUEST, table

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def shadows() -> ir.Table:
    """Count chains by request, intervention, length and what of them agrees with the target. A
    chain belongs to the analysis if the round of its position does."""
    rows = table("shadow").semi_join(table("verify"), [*REQUEST, "position"])
    by = (*REQUEST, "intervention", "k", "known", "agreed", "served_agreed")
    return rows.group_by(*by).aggregate(chains=rows.count())
