"""Passes over the decode steps of requests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from driftscope.analysis.query.chain_shape import Shape
from driftscope.analysis.query.record_views import IN_BUCKETS, REQUEST, table
from driftscope.vocabulary import UndraftedReason

if TYPE_CHECKING:
    import ibis.expr.types as ir


def counts(
    drafted: ir.IntegerColumn, accepted: ir.IntegerColumn, shape: Shape
) -> dict[str, ir.IntegerScalar]:
    """Return the sums that `driftscope.analysis.figures.round_sums.rounds_of` reads. Lengths below
    K are counted one by one only if the run has them."""
    is_round = drafted > 0
    return {
        "rounds": is_round.sum(),
        "drafted": drafted.sum(),
        **{f"drafted_{n}": (drafted == n).sum() for n in shape.shorter},
        **{f"whole_{n}": ((drafted == n) & (accepted == n)).sum() for n in shape.shorter},
        **{f"accepted_{n}": (is_round & (accepted == n)).sum() for n in range(shape.k + 1)},
    }


def _accepted(rows: ir.Table, shape: Shape) -> dict[str, ir.IntegerScalar]:
    return counts(rows.drafted.fill_null(0), rows.accepted.fill_null(0), shape)


def _steps(rows: ir.Table) -> dict[str, Any]:
    """Return the number of impossible steps and of steps without a draft, by reason, and the times
    of the first and last step."""
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
def by_context(shape: Shape) -> ir.Table:
    """Sum decode steps by request and by the power of two at or below the length of the context."""
    import ibis

    rows = table("verify")
    power = ibis.greatest(rows.position + 1, 1).log2().floor().cast("int64")
    rows = rows.mutate(bucket=power)
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, shape), **_steps(rows))


@cache
def by_batch(shape: Shape, *, narrowed: bool) -> ir.Table:
    """Sum rounds by request and by the power of two at or below the number of requests in their
    step, whether or not they meet the conditions. Unless the run is `narrowed`, the view has every
    row of a step, and its rows need not be joined with a count of all."""
    import ibis

    place, rows = ("replica", "step"), table("verify")
    if narrowed:
        every = table("verify_all", "verify")
        rows = rows.join(every.group_by(*place).aggregate(size=every.count()), place)
    else:
        rows = rows.mutate(size=rows.count().over(ibis.window(group_by=place)))
    rows = rows.filter(rows.drafted > 0)
    rows = rows.mutate(bucket=rows.size.log2().floor().cast("int64"))
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def rounds_in_buckets(shape: Shape) -> ir.Table:
    """Sum decode steps by bucket and request."""
    rows = table(f"verify_{IN_BUCKETS}", "verify", bucket="string")
    rows = rows.filter(rows.bucket.notnull())
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def by_length(shape: Shape) -> ir.Table:
    """Sum rounds by request and by the number of tokens that they drafted."""
    rows = table("verify")
    rows = rows.filter(rows.drafted > 0).mutate(length=rows.drafted)
    return rows.group_by("length", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def undrafted() -> ir.Table:
    """Count decode steps without a draft, by request and reason."""
    rows = table("verify")
    none = rows.filter(rows.drafted.fill_null(0) == 0)
    return none.group_by("reason", *REQUEST).aggregate(rows=lambda t: t.count())


@cache
def duration() -> ir.Table:
    """Return the times of the first and the last decode step."""
    rows = table("verify")
    return rows.aggregate(first_s=rows.time_s.min(), last_s=rows.time_s.max())
