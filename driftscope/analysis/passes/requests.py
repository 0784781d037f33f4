"""Passes over the requests that rows belong to."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import REQUEST, table

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def requests_of_chains() -> ir.Table:
    """Return the requests that have a recorded chain, with their number of chains and the first and
    last step with one."""
    draft = table("draft")
    return draft.group_by(*REQUEST).aggregate(
        chains=draft.count(), first_step=draft.step.min(), last_step=draft.step.max()
    )


@cache
def requests_that_finished() -> ir.Table:
    """Return the request rows, one per finished request, in order of time."""
    rows = table("request")
    return rows.select(
        *REQUEST,
        "label",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "ttft_s",
        "tpot_s",
        "temperature",
        "structured",
        "finish_reason",
        "prompt_digest",
        "conversation",
        "session",
        "pair",
        "time_s",
        has_regions=rows.region_starts.notnull(),
    ).order_by("time_s", *REQUEST)
