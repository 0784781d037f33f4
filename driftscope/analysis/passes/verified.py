"""Recorded chains beside the rounds that verified them, of the requests that are LOOKED_AT."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.passes.views import LOOKED_AT, REQUEST, clusters, table
from driftscope.metrics.chains import finite

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def repeated_chains() -> ir.Table:
    """How many positions of a request were drafted more than once."""
    return _repeated(_chains())


@cache
def repeated_rounds() -> ir.Table:
    """How many positions of a request were verified more than once."""
    return _repeated(_rounds())


def _chains() -> ir.Table:
    return table("draft").semi_join(clusters(LOOKED_AT), REQUEST)


def _rounds() -> ir.Table:
    rows = table("verify")
    return rows.filter(rows.drafted > 0).semi_join(clusters(LOOKED_AT), REQUEST)


def _repeated(rows: ir.Table) -> ir.Table:
    keys = rows.group_by(*REQUEST, "position").aggregate(rows=lambda t: t.count())
    return keys.filter(keys.rows > 1).aggregate(keys=lambda t: t.count())


@cache
def verified(repeated: bool) -> ir.Table:
    """Recorded chains beside the round that verified them, a row for each that was.

    The engine core writes a round later than the worker wrote its chain, or dies in between, so a
    round belongs to the latest chain of its request and position. A request's last chain is often
    never verified, and with sampling most rounds have no recorded chain. Positions that were not
    `repeated` need no search for the latest.
    """
    import ibis

    draft, rounds = _chains(), _rounds()
    drawn = draft.select(
        *REQUEST, "position", "top1", "rate", "execution", drafted_s=draft.time_s, drawn=draft.k
    )
    done = rounds.select(*REQUEST, "position", "accepted", "time_s")
    key = (*REQUEST, "position")
    if not repeated:
        both = done.join(drawn, [*key, done.time_s >= drawn.drafted_s])
        return both.select(*key, "accepted", "top1", "rate", "execution", "drawn", "drafted_s")
    order = ibis.window(group_by=key, order_by="drafted_s")
    drawn = drawn.mutate(next_s=drawn.drafted_s.lead().over(order))
    both = done.join(drawn, [*key, done.time_s >= drawn.drafted_s])
    both = both.filter(both.next_s.isnull() | (both.time_s < both.next_s))
    latest = ibis.window(group_by=(*key, "drafted_s"), order_by=both.time_s.desc())
    both = both.mutate(place=ibis.row_number().over(latest))
    both = both.filter(both.place == 0)
    return both.select(*key, "accepted", "top1", "rate", "execution", "drawn", "drafted_s")


@cache
def number_verified(repeated: bool) -> ir.Table:
    """How many recorded chains have their round in the run."""
    return verified(repeated).aggregate(chains=lambda t: t.count())


@cache
def reliability(k: int, bins: int, repeated: bool) -> ir.Table:
    """Confidence and acceptance of verified chains by depth and bin of confidence.

    Only depths that verification reached: what the target made of a token after a rejected one is
    not known.
    """
    import ibis

    both = verified(repeated)
    both = both.filter(both.top1.notnull())
    depth = ibis.range(0, k).unnest()
    deep = both.select("accepted", "top1", weight=1.0 / both.rate, depth=depth)
    deep = deep.filter(deep.accepted >= deep.depth)
    sure = deep.top1[deep.depth].cast("float64")
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
def by_execution(k: int, repeated: bool) -> ir.Table:
    """Verified chains by execution and request."""
    both = verified(repeated)
    return both.group_by("execution", *REQUEST).aggregate(
        rounds=both.count(),
        drafted=both.drawn.sum(),
        short=(both.drawn < k).sum(),
        **{f"accepted_{n}": (both.accepted == n).sum() for n in range(k + 1)},
    )
