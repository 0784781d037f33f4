"""Times of the workers' steps."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from driftscope.analysis.figures.step_cells import StepCell, cells_of
from driftscope.analysis.passes.steps import steps, steps_in_blocks, typical_step
from driftscope.analysis.query.column_arrays import floats, sums, whole
from driftscope.analysis.query.query_engine import Later
from driftscope.analysis.query.record_views import Tables
from driftscope.metrics.latency import StepCost

ENOUGH_STEPS = 10
"""Smallest number of unrecorded steps for a median step time; with fewer, recorded ones count
too."""
EXACT_STEPS = 5_000_000
"""Largest number of steps for which a median is exact; above, it is a t-digest's."""
STEPS_READ = 500_000
"""Number of consecutive steps that the cost model reads; of more steps it reads evenly spread
blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of the steps of one run."""

    cost: StepCost | None
    """Median times of steps that drafted; None if no step's time can be split."""
    cells: tuple[StepCell, ...]
    """Step times by K and batch size."""
    probe_s: float
    """Seconds that the probe took in the workers' steps."""
    step_s: float
    """Seconds of these steps, the probe's own included."""


def step_times(tables: Tables) -> Later[StepTimes]:
    """Read the times of a run's steps, to be computed later."""
    counts = tables.engine.rows(steps())
    cost = _cost(tables, counts)
    every = -(-_one(counts, "steps") // STEPS_READ) or 1
    blocks = tables.engine.rows(steps_in_blocks(every))
    return Later(
        lambda: StepTimes(
            cost=cost,
            cells=cells_of(blocks),
            probe_s=float(sums(counts, "probe_s")[0]),
            step_s=float(sums(counts, "step_s")[0]),
        )
    )


def _cost(tables: Tables, counts: pa.Table) -> StepCost | None:
    """Return median times of steps that drafted, without the probe's own time; a prefill is an
    outlier."""
    recorded = _one(counts, "plain") < ENOUGH_STEPS
    drew = _one(counts, "drew")
    if not drew:
        return None
    typical = tables.engine.rows(typical_step(recorded, drew <= EXACT_STEPS))
    step_s, draft_s = (float(floats(typical, name)[0]) for name in ("step_s", "draft_s"))
    if not 0 < draft_s < step_s:
        return None
    return StepCost(step_s=step_s, draft_s=draft_s, recorded=recorded)


def _one(table: pa.Table, name: str) -> int:
    return int(whole(table, name).sum())
