"""Times of the workers' steps: over all, and by K and batch size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Later, floats, in_order, ints, sums, total
from driftscope.analysis.query.record_views import Tables, table
from driftscope.metrics.latency import StepCost

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
def steps_in_blocks(nth: int) -> ir.Table:
    """Return the steps of every `nth` block of neighbouring steps, one row per step."""
    rows = table("step")
    if nth > 1:
        rows = rows.filter((rows.step // BLOCK_STEPS) % nth == 0)
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


GROUPS = 10
"""Number of groups of neighbouring steps whose medians give a cell's standard error. Consecutive
steps are correlated, and means over groups hardly are (batch means; Schmeiser 1982 advises 10 to 30
groups)."""
MIN_STEPS = 2 * GROUPS
"""Smallest number of steps of a cell: with two per group a median is more than one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCell:
    """Steps of one batch size that drafted K tokens and followed a step of the same kind."""

    k: int
    batch: int
    steps: int
    step_s: float
    """Median time in seconds from the end of the step before to the end of this one, without the
    probe's share: the worker's time and the engine's time around it."""
    step_error_s: float
    """Standard error of `step_s`."""
    draft_s: float
    """Median time of the drafter within the step, in seconds."""
    draft_error_s: float
    recorded: bool
    """Whether the times come from recorded steps, which the probe slows by more than its own
    time."""
    held_out: float | None = None
    """Relative distance of the median of every second group of steps from that of the others."""


def cells_of(step: pa.Table) -> tuple[StepCell, ...]:
    """Return the cells of a trace's step table, by K and batch size.

    Steps with a prefill in them are outliers, which a median ignores.
    """
    if step.num_rows < MIN_STEPS:
        return ()
    step = in_order(step, "replica", "time_s")
    k, batch, replica = (ints(step, name) for name in ("k", "requests", "replica"))
    k = np.where(ints(step, "chains") > 0, k, 0)
    recorded = floats(step, "recorded") > 0
    steady = np.zeros(len(k), dtype=np.bool_)
    steady[1:] = (np.diff(k) == 0) & (np.diff(batch) == 0) & (np.diff(replica) == 0)
    # The times from end to end and of the drafter, without the probe, [steps] each; the first
    # step has no time from end to end. A GPU's own clock is preferred to the host's, which
    # does not wait for the GPU.
    probe_s = floats(step, "probe_s")
    whole = np.diff(floats(step, "time_s"), prepend=np.nan) - probe_s
    on_gpu = floats(step, "gpu_draft_s") - np.nan_to_num(floats(step, "gpu_probe_s"))
    busy = np.where(np.isfinite(on_gpu), on_gpu, floats(step, "draft_s") - probe_s)
    drafting = np.maximum(busy, 0.0)
    keys = k * (int(batch.max(initial=0)) + 1) + batch
    cells = (
        _cell(np.flatnonzero(steady & (keys == key)), k, batch, recorded, whole, drafting)
        for key in np.unique(keys[steady])
    )
    return tuple(cell for cell in cells if cell is not None)


def _cell(
    mine: NDArray[np.int64],
    k: NDArray[np.int64],
    batch: NDArray[np.int64],
    recorded: NDArray[np.bool_],
    whole: NDArray[np.float64],
    drafting: NDArray[np.float64],
) -> StepCell | None:
    plain = mine[~recorded[mine]]
    chosen = plain if len(plain) >= MIN_STEPS else mine
    if len(chosen) < MIN_STEPS:
        return None
    step_s, step_error_s = _median(whole[chosen])
    draft_s, draft_error_s = _median(drafting[chosen])
    if not 0 <= draft_s < step_s:
        return None
    groups = np.array_split(whole[chosen], GROUPS)
    fitted, left = (float(np.median(np.concatenate(groups[at::2]))) for at in (0, 1))
    return StepCell(
        k=int(k[chosen[0]]),
        batch=int(batch[chosen[0]]),
        steps=len(chosen),
        step_s=step_s,
        step_error_s=step_error_s,
        draft_s=draft_s if k[chosen[0]] else 0.0,
        draft_error_s=draft_error_s if k[chosen[0]] else 0.0,
        recorded=len(plain) < MIN_STEPS,
        held_out=abs(left / fitted - 1.0) if fitted > 0 else None,
    )


def _median(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median, and its standard error from the medians of groups of neighbours."""
    groups = [float(np.median(group)) for group in np.array_split(values, GROUPS)]
    return float(np.median(values)), float(np.std(groups, ddof=1) / np.sqrt(GROUPS))


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
    every = -(-total(counts, "steps") // STEPS_READ) or 1
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
    recorded = total(counts, "plain") < ENOUGH_STEPS
    drew = total(counts, "drew")
    if not drew:
        return None
    typical = tables.engine.rows(typical_step(recorded, drew <= EXACT_STEPS))
    step_s, draft_s = (float(floats(typical, name)[0]) for name in ("step_s", "draft_s"))
    if not 0 < draft_s < step_s:
        return None
    return StepCost(step_s=step_s, draft_s=draft_s, recorded=recorded)
