"""Workers' steps and what they took."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.passes.views import table

if TYPE_CHECKING:
    import ibis.expr.types as ir

BLOCK_STEPS = 1000
"""Neighbouring steps that stay together where not all are read."""


@cache
def steps() -> ir.Table:
    """What steps cost in all."""
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
    """Median times of steps that drafted, of unrecorded ones only unless `recorded`, without the
    probe's own; not `exact`: by a sketch that merges (t-digest)."""
    rows = table("step")
    rows = rows.filter(rows.chains > 0)
    rows = rows if recorded else rows.filter(~rows.recorded)
    step_s, draft_s = rows.step_s - rows.probe_s, rows.draft_s - rows.probe_s
    if exact:
        return rows.aggregate(step_s=step_s.median(), draft_s=draft_s.median())
    return rows.aggregate(step_s=step_s.approx_median(), draft_s=draft_s.approx_median())


@cache
def steps_in_blocks(each: int) -> ir.Table:
    """Every `each`-th block of neighbouring steps, a row each."""
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
