"""Decode steps of requests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from driftscope.analysis.passes.views import REQUEST, SUSPECTS, clusters, table
from driftscope.analysis.tables import IN_BUCKETS
from driftscope.trace.records import UndraftedReason

if TYPE_CHECKING:
    import ibis.expr.types as ir


def _accepted(rows: ir.Table, k: int) -> dict[str, Any]:
    """What `driftscope.analysis.rounds.rounds_of` reads."""
    drafted, accepted = rows.drafted.fill_null(0), rows.accepted.fill_null(0)
    is_round = drafted > 0
    return {
        "rounds": is_round.sum(),
        "drafted": drafted.sum(),
        "short": (is_round & (drafted < k)).sum(),
        **{f"accepted_{n}": (is_round & (accepted == n)).sum() for n in range(k + 1)},
    }


def _steps(rows: ir.Table) -> dict[str, Any]:
    """Steps that cannot be, steps without a draft and why, and when the first and the last was."""
    drafted, accepted = rows.drafted.fill_null(0), rows.accepted.fill_null(0)
    none = drafted <= 0
    lost = rows.reason == UndraftedReason.STRUCTURED_OUTPUT
    meant = rows.reason.isin(UndraftedReason.DELIBERATE)
    return {
        "wrong": ((accepted > drafted) | (accepted < 0)).sum(),
        "undrafted": none.sum(),
        "structured": (none & lost.fill_null(False)).sum(),
        "deliberate": (none & meant.fill_null(False)).sum(),
        "first_s": rows.time_s.min(),
        "last_s": rows.time_s.max(),
    }


@cache
def by_context(k: int) -> ir.Table:
    """Decode steps by request and by the power of two below the length of the context."""
    import ibis

    rows = table("verify")
    power = ibis.greatest(rows.position + 1, 1).log2().floor().cast("int64")
    rows = rows.mutate(bucket=power)
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, k), **_steps(rows))


@cache
def by_batch(k: int) -> ir.Table:
    """Rounds by request and by the power of two below the number of requests in their step."""
    rows = table("verify")
    place = ("replica", "step")
    sizes = rows.group_by(*place).aggregate(size=rows.count())
    rows = rows.filter(rows.drafted > 0).join(sizes, place)
    rows = rows.mutate(bucket=rows.size.log2().floor().cast("int64"))
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, k))


@cache
def rounds_in_buckets(k: int) -> ir.Table:
    """Decode steps by bucket and request."""
    rows = table(f"verify_{IN_BUCKETS}", "verify", bucket="string")
    rows = rows.filter(rows.bucket.notnull())
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, k))


@cache
def undrafted() -> ir.Table:
    """Decode steps without a draft, by request and reason."""
    rows = table("verify")
    none = rows.filter(rows.drafted.fill_null(0) == 0)
    return none.group_by("reason", *REQUEST).aggregate(rows=lambda t: t.count())


@cache
def duration() -> ir.Table:
    """Time of the first and the last decode step."""
    rows = table("verify")
    return rows.aggregate(first_s=rows.time_s.min(), last_s=rows.time_s.max())


@cache
def whole_at_the_end(k: int, last: int) -> ir.Table:
    """Of the requests in SUSPECTS, how many of their `last` rounds were drafted and accepted
    whole."""
    import ibis

    rows = table("verify")
    rows = rows.filter(rows.drafted > 0).join(clusters(SUSPECTS), REQUEST)
    order = ibis.window(group_by="cluster", order_by=rows.time_s.desc())
    rows = rows.mutate(back=ibis.row_number().over(order))
    rows = rows.filter(rows.back < last)
    taken = (rows.drafted == k) & (rows.accepted >= k)
    return rows.group_by("cluster").aggregate(whole=taken.sum())
