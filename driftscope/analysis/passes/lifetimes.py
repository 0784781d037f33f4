"""Passes over all decode steps of a run: when each request decoded, and what became of rounds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import REQUEST, SERVED, table

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def lifetimes(view: str) -> ir.Table:
    """Return the rounds of each request, and the times of its first and last decode step, in a view
    of decode steps."""
    rows = table(view, "verify")
    return rows.group_by(*REQUEST).aggregate(
        rounds=(rows.drafted.fill_null(0) > 0).sum(),
        first_s=rows.time_s.min(),
        last_s=rows.time_s.max(),
    )


@cache
def ended_requests() -> ir.Table:
    """Return the requests whose end was recorded, whatever conditions the run has."""
    return table("request_all", "request").select(*REQUEST).distinct()


@cache
def outcomes() -> ir.Table:
    """Count all rounds that meet the run's conditions by tokens accepted, with the largest number
    of tokens that one of them drafted."""
    rows = table(SERVED, "verify")
    rows = rows.filter(rows.drafted > 0).mutate(accepted=rows.accepted.fill_null(0))
    return rows.group_by("accepted").aggregate(
        rounds=lambda t: t.count(), longest=lambda t: t.drafted.max()
    )
