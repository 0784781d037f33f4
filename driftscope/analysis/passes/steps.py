"""Passes over workers' steps and their times."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import table

if TYPE_CHECKING:
    import ibis.expr.types as ir

BLOCK_STEPS = 1000
"""Number of neighbouring steps in a block; blocks are read whole if not all steps are read."""


@cache
def steps() -> ir.Table:
    """Return the number of steps and their total times."""
    rows = table("step")
    return rows.aggregate(
        steps=rows.count(),
        probe_s=rows.probe_s.sum(),
        step_s=rows.step_s.sum(),
        drew=(rows.chains > 0).sum(),
        plain=((rows.chains > 0) & ~rows.recorded).sum(),
    )


@cache
def typical_step(recorded: bool, exact: bool) -> ir.Table:
    """Return median times of steps that drafted, without the probe's own time; only of unrecorded
    steps unless `recorded`. Unless `exact`, a mergeable sketch (t-digest) is used."""
    rows = table("step")
    rows = rows.filter(rows.chains > 0)
    rows = rows if recorded else rows.filter(~rows.recorded)
    step_s, draft_s = rows.step_s - rows.probe_s, rows.draft_s - rows.probe_s
    if exact:
        return rows.aggregate(step_s=step_s.median(), draft_s=draft_s.median())
    return rows.aggregate(step_s=step_s.approx_median(), draft_s=draft_s.approx_median())


@cache
def steps_in_blocks(each: int) -> ir.Table:
    """Return the steps of every `each`-th block of neighbouring steps, one row per step."""
    rows = table("step")
    if each > 1:
        rows = rows.filter((rows.step // BLOCK_STEPS) % each == 0)
    return rows.select(
        "replica",
        "step",
        "time_s",
        "requests",
        "chains",
        "k",
        "recorded",
        "step_s",
        "draft_s",
        "probe_s",
        "gpu_draft_s",
        "gpu_probe_s",
    )
