"""Passes over recorded chains joined with the rounds that verified them, for the requests in
LOOKED_AT.

Both, and their join, are stored under names of their own, DRAWN, DONE and VERIFIED, because they
are read several times.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.figures.chain_shape import Shape
from driftscope.analysis.figures.rounds import counts
from driftscope.analysis.query.record_views import LOOKED_AT, REQUEST, clusters, sampled, table
from driftscope.metrics.attention import finite

if TYPE_CHECKING:
    import ibis.expr.types as ir

DRAWN, DONE, VERIFIED = "drawn", "done", "verified"
KEY = ("cluster", "position")
"""Number of a request, and the position at which its chain starts."""


@cache
def drawn(in_steps: bool = False) -> ir.Table:
    """Return the chains of these requests; `in_steps` is that of `passes.views.sampled`."""
    rows = sampled(table("draft"), LOOKED_AT, in_steps)
    return rows.select(*KEY, "top1", "rate", "execution", drafted_s=rows.time_s, drawn=rows.k)


@cache
def done() -> ir.Table:
    """Return the rounds of these requests."""
    rows = table("verify")
    rows = rows.filter(rows.drafted > 0).join(clusters(LOOKED_AT), REQUEST)
    return rows.select(*KEY, "accepted", "time_s")


@cache
def repeated_chains() -> ir.Table:
    """Count the positions of a request that were drafted more than once."""
    return _repeated(_kept(DRAWN, drawn()))


@cache
def repeated_rounds() -> ir.Table:
    """Count the positions of a request that were verified more than once."""
    return _repeated(_kept(DONE, done()))


def verified_chains() -> ir.Table:
    """Return the rows stored under VERIFIED."""
    return _kept(VERIFIED, joined(repeated=False))


def _kept(name: str, rows: ir.Table) -> ir.Table:
    import ibis

    return ibis.table(rows.schema(), name=name)


def _repeated(rows: ir.Table) -> ir.Table:
    keys = rows.group_by(*KEY).aggregate(rows=lambda t: t.count())
    return keys.filter(keys.rows > 1).aggregate(keys=lambda t: t.count())


@cache
def joined(repeated: bool) -> ir.Table:
    """Join recorded chains with the rounds that verified them, one row per verified chain.

    The engine core writes a round later than the worker wrote its chain, or dies in between, so a
    round belongs to the latest chain of its request and position. A request's last chain is often
    never verified, and with sampling most rounds have no recorded chain. If no position was
    `repeated`, no search for the latest chain is needed.
    """
    import ibis

    chains, rounds = _kept(DRAWN, drawn()), _kept(DONE, done())
    if not repeated:
        return _joined(chains, rounds).select(*KEY, *_PAIR_COLUMNS)
    order = ibis.window(group_by=KEY, order_by="drafted_s")
    chains = chains.mutate(next_s=chains.drafted_s.lead().over(order))
    both = _joined(chains, rounds)
    both = both.filter(both.next_s.isnull() | (both.time_s < both.next_s))
    latest = ibis.window(group_by=(*KEY, "drafted_s"), order_by=both.time_s.desc())
    both = both.mutate(place=ibis.row_number().over(latest))
    return both.filter(both.place == 0).select(*KEY, *_PAIR_COLUMNS)


_PAIR_COLUMNS = ("accepted", "top1", "rate", "execution", "drawn", "drafted_s")


def _joined(chains: ir.Table, rounds: ir.Table) -> ir.Table:
    return rounds.join(chains, [*KEY, rounds.time_s >= chains.drafted_s])


@cache
def number_verified() -> ir.Table:
    """Count the recorded chains whose round is in the run."""
    return verified_chains().aggregate(chains=lambda t: t.count())


@cache
def reliability(bins: int) -> ir.Table:
    """Sum confidence and acceptance of verified chains by depth and bin of confidence.

    Only depths that verification reached are included: the target's answer to a token after a
    rejected one is not known.
    """
    import ibis

    both = verified_chains()
    both = both.filter(both.top1.notnull())
    depth = ibis.range(0, ibis.least(both.accepted + 1, both.drawn)).unnest()
    deep = both.select("accepted", "top1", weight=1.0 / both.rate, depth=depth)
    deep = deep.filter(deep.accepted >= deep.depth)
    sure = deep.top1[deep.depth.cast("int32")].cast("float64")
    deep = deep.select("depth", "weight", hit=deep.accepted > deep.depth, sure=sure)
    deep = deep.filter(finite(deep.sure))
    deep = deep.mutate(bin=ibis.least((deep.sure * bins).floor().cast("int64"), bins - 1))
    return deep.group_by("depth", "bin").aggregate(
        tokens=deep.count(),
        weight=deep.weight.sum(),
        sure=(deep.sure * deep.weight).sum(),
        accepted=ibis.ifelse(deep.hit, deep.weight, 0.0).sum(),
    )


@cache
def by_execution(shape: Shape) -> ir.Table:
    """Sum verified chains by execution and request."""
    both = verified_chains()
    made = counts(both.drawn, both.accepted, shape)
    return both.group_by("execution", "cluster").aggregate(**made)
