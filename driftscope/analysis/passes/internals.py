"""Pass over verified chains: what the drafter's internals were when each token was proposed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.passes.chains import deep_enough
from driftscope.analysis.passes.verified import KEY, verified_chains
from driftscope.analysis.passes.views import sampled
from driftscope.analysis.query.chain_shape import Shape
from driftscope.analysis.query.list_elements import Elements
from driftscope.analysis.query.record_views import Derived
from driftscope.metrics import attention
from driftscope.vocabulary import CONFIDENCE_BY_DEPTH, SELF_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

WITHIN = "within_requests"
"""Name of the view of the requests whose chains are looked at."""
FED = "fed_rms"


def column(name: str, index: int) -> str:
    """Return the column of a quantity at depth `index` + 1."""
    return f"{name}_{index}"


@cache
def internals(shape: Shape, derived: Derived, in_steps: bool) -> ir.Table:
    """Return the verified chains of one file layout, one row each: request, position, tokens
    accepted and drafted, and by depth the mass on the chain itself (averaged over layers), the RMS
    fed forward and the drafter's confidence, as far as they were recorded. `in_steps` is that of
    `passes.views.sampled`."""
    rows = sampled(deep_enough(shape), WITHIN, in_steps)
    lists = Elements(rows, dict(derived), shape)
    columns = {}
    for index in range(shape.depths):
        if SELF_MASS not in shape.absent:
            own = attention.over_layers(lists.layers(SELF_MASS, index))
            columns[column(SELF_MASS, index)] = own
        for name in (FED, *CONFIDENCE_BY_DEPTH):
            columns[column(name, index)] = lists.at(name, index)
    chains = rows.select(*KEY, chain_s=rows.time_s, **columns)
    rounds = verified_chains()
    both = rounds.join(chains, [*KEY, rounds.drafted_s == chains.chain_s])
    return both.select(*KEY, "accepted", "drawn", *columns)
