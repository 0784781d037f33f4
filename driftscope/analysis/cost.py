"""Times of the workers' steps, and the cost model: time of a step for any K and batch size, from
what order alone implies.

More tokens to verify take no less time, at a batch size that is no smaller; nor does a longer
chain. No curve is assumed. Measured steps are reported as measured. For a K that was not measured
there are two answers:

- **bounds**: not less than any measured step that has neither more tokens nor more requests, not
  more than any that has neither fewer. Below the least tokens measured, verification takes at least
  half of the least time. Drafting K' of K tokens takes at least K'/K of the time.
- **a guess**, with which the next K to measure is chosen: an isotonic curve in tokens, linear
  between K that were measured at the same batch size.

Bounds hold the time in the long run: they include the error of the medians and the variation
between runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import floats, in_order, sums_column, total, whole
from driftscope.analysis.query.record_views import Tables, table
from driftscope.analysis.statistics.changes import LEAST_STRETCH, odd_stretch
from driftscope.analysis.statistics.intervals import Z95, Interval, student
from driftscope.analysis.validity import RUN_EFFECT
from driftscope.metrics.latency import StepCost

if TYPE_CHECKING:
    import ibis.expr.types as ir

BLOCK_STEPS = 1000
"""Number of neighbouring steps in a block; blocks are read whole if not all steps are read."""


@cache
def steps() -> ir.Table:
    """Return the number of steps and their total times."""
    rows = table("step")
    return rows.aggregate(steps=rows.count(), probe_s=rows.probe_s.sum(), step_s=rows.step_s.sum())


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Steps that followed one of the same K and batch size, by replica and time, [steps] each."""

    k: NDArray[np.int64]
    batch: NDArray[np.int64]
    replica: NDArray[np.int64]
    recorded: NDArray[np.bool_]
    time_s: NDArray[np.float64]
    """Unix time at which each ended."""
    whole_s: NDArray[np.float64]
    """Time from the end of the step before, without the probe's own."""
    draft_s: NDArray[np.float64]
    """Time of the drafter, without the probe's own. A GPU's own clock is preferred to the host's,
    which does not wait for the GPU."""


def _steady(step: pa.Table) -> _Steps:
    step = in_order(step, "replica", "time_s")
    k, batch, replica = (whole(step, name) for name in ("k", "requests", "replica"))
    k = np.where(whole(step, "chains") > 0, k, 0)
    steady = np.zeros(len(k), dtype=np.bool_)
    steady[1:] = (np.diff(k) == 0) & (np.diff(batch) == 0) & (np.diff(replica) == 0)
    probe_s, time_s = floats(step, "probe_s"), floats(step, "time_s")
    on_gpu = floats(step, "gpu_draft_s") - np.nan_to_num(floats(step, "gpu_probe_s"))
    busy = np.where(np.isfinite(on_gpu), on_gpu, floats(step, "draft_s") - probe_s)
    return _Steps(
        k=k[steady],
        batch=batch[steady],
        replica=replica[steady],
        recorded=(floats(step, "recorded") > 0)[steady],
        time_s=time_s[steady],
        whole_s=(np.diff(time_s, prepend=np.nan) - probe_s)[steady],
        draft_s=np.maximum(busy, 0.0)[steady],
    )


def _cells(steps: _Steps) -> tuple[StepCell, ...]:
    """Return the cells of steady steps, by K and batch size.

    Steps with a prefill in them are outliers, which a median ignores.
    """
    k, batch, whole_s, drafting = steps.k, steps.batch, steps.whole_s, steps.draft_s
    keys = k * (int(batch.max(initial=0)) + 1) + batch
    cells = []
    for key in np.unique(keys):
        cell_steps = np.flatnonzero(keys == key)
        plain = cell_steps[~steps.recorded[cell_steps]]
        chosen = plain if len(plain) >= MIN_STEPS else cell_steps
        if len(chosen) < MIN_STEPS:
            continue
        step_s, step_error_s = _median(whole_s[chosen])
        draft_s, draft_error_s = _median(drafting[chosen])
        if not 0 <= draft_s < step_s:
            continue
        groups = np.array_split(whole_s[chosen], GROUPS)
        fitted, left = (float(np.median(np.concatenate(groups[at::2]))) for at in (0, 1))
        cell = StepCell(
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
        cells.append(cell)
    return tuple(cells)


def _median(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median, and its standard error from the medians of groups of neighbours."""
    groups = [float(np.median(group)) for group in np.array_split(values, GROUPS)]
    return float(np.median(values)), float(np.std(groups, ddof=1) / np.sqrt(GROUPS))


SLOWER = 1.25
"""Time of a step over that of others of its kind from which a stretch of a run is slower, with the
whole 95% interval. driftscope's own bound: five times RUN_EFFECT, by which a server differs from
itself."""
LONGER = 1.25
"""Mean context over that of the other rounds from which it may explain slower steps. driftscope's
own bound: attention to the context is a part of a step only."""
_BY_CHANCE = 0.01
"""Share of random orders with a stretch as odd."""
_MOST_BLOCKS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A stretch of a run whose steps take longer than the run's other steps of the same replica, K
    and batch size."""

    start_s: float | None
    """Unix time of its first step; None if it begins with the run."""
    end_s: float | None
    """Unix time of its last step; None if it lasts to the end of the run."""
    slower: float
    """Time of a step over that of the others."""
    interval: Interval | None
    draft: float | None
    """Time of the drafter's part of a step over that of the others; None if it took no time."""
    step_s: float
    """Median time of its steps, in seconds."""
    share: float
    """Share of the time of all such steps that this stretch takes."""
    context: float | None = None
    """Mean context length of its rounds over that of the others."""

    @property
    def lost(self) -> float:
        """Share of the time that would not have passed if these steps took as long as the
        others."""
        return self.share * (1.0 - 1.0 / self.slower)

    @property
    def contexts_may_explain(self) -> bool:
        """Whether contexts are so much longer that they may be the reason."""
        return self.context is not None and self.context > LONGER


def _slowdown(steps: _Steps) -> Slowdown | None:
    """Return the stretch whose steps are slower, by SLOWER at least; None if there is none that
    costs more time than the run effect, or if no kind of step is both in it and outside."""
    kind = 2 * steps.replica + steps.recorded
    for part in (steps.k, steps.batch):
        kind = kind * (int(part.max(initial=0)) + 1) + part
    _, kind, sizes = np.unique(kind, return_inverse=True, return_counts=True)
    usable = np.flatnonzero((steps.whole_s > 0) & (sizes[kind] >= MIN_STEPS))
    order = usable[np.argsort(steps.time_s[usable], kind="stable")]
    kind, whole_s, time_s = kind[order], steps.whole_s[order], steps.time_s[order]
    slow = _slow_stretch(_beyond(whole_s, kind, np.ones(len(kind), dtype=np.bool_)))
    if slow is None:
        return None
    in_both = [np.bincount(kind[part], minlength=len(sizes)) >= MIN_STEPS for part in (slow, ~slow)]
    shared = (in_both[0] & in_both[1])[kind]
    if not shared.any():
        return None

    def ratio(seconds: NDArray[np.float64]) -> tuple[float, float]:
        """Return the logarithm of how much longer this takes in the stretch, and its error."""
        logs = _beyond(seconds[shared], kind[shared], ~slow[shared])
        (late, error), (early, other) = (_median(logs[slow[shared] == side]) for side in (1, 0))
        return late - early, math.hypot(error, other)

    slower, error = ratio(whole_s)
    half = float(student(GROUPS - 1)) * error
    if slower - half < math.log(SLOWER):
        return None
    draft_s = steps.draft_s[order]
    found = Slowdown(
        start_s=None if slow[0] else float(time_s[slow][0]),
        end_s=None if slow[-1] else float(time_s[slow][-1]),
        slower=math.exp(slower),
        interval=Interval.between(math.exp(slower - half), math.exp(slower + half)),
        draft=math.exp(ratio(draft_s)[0]) if (draft_s[shared] > 0).all() else None,
        step_s=float(np.median(whole_s[slow])),
        share=float(whole_s[slow].sum() / whole_s.sum()),
    )
    return found if found.lost >= RUN_EFFECT else None


def _beyond(
    seconds: NDArray[np.float64], kind: NDArray[np.int64], usual: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the logarithm of each step's time over the median of the `usual` steps of its kind."""
    out = np.empty(len(seconds))
    order = np.argsort(kind, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1) if len(order) else ():
        out[rows] = np.log(seconds[rows] / np.median(seconds[rows][usual[rows]]))
    return out


def _slow_stretch(beyond: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """Return which steps, in order of time, are of the one stretch that takes longer than the rest;
    None if there is none. What is fast for a while leaves two."""
    blocks = min(_MOST_BLOCKS, len(beyond) // GROUPS)
    if not blocks:
        return None
    parts = np.array_split(beyond, blocks)
    values = np.array([np.median(part) for part in parts])
    odd = odd_stretch(values, _BY_CHANCE)
    if odd is None:
        return None
    slow = np.zeros(blocks, dtype=np.bool_)
    begin = odd.start if odd.start >= LEAST_STRETCH else 0
    slow[begin : odd.stop if blocks - odd.stop >= LEAST_STRETCH else blocks] = True
    if values[slow].mean() < values[~slow].mean():
        slow = ~slow
    is_one = not (slow[0] and slow[-1])
    return np.repeat(slow, [len(part) for part in parts]) if is_one else None


def _with_context(slow: Slowdown, tables: Tables) -> Slowdown:
    """Return the slowdown with the context lengths of its rounds over the others'."""
    rows = table("verify")
    during = rows.time_s.between(slow.start_s or 0.0, slow.end_s or math.inf)
    query = rows.aggregate(
        own=rows.position.mean(where=during), other=rows.position.mean(where=~during)
    )
    own, other = (floats(tables.engine.rows(query), name)[0] for name in ("own", "other"))
    return replace(slow, context=float(own / other) if own > 0 and other > 0 else None)


ENOUGH_STEPS = 10
"""Smallest number of unrecorded steps for a median step time; with fewer, recorded ones count
too."""
STEPS_READ = 500_000
"""Number of consecutive steps that the cost model reads; of more steps it reads evenly spread
blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    slowdown: Slowdown | None
    rows: pa.Table
    """Steps, one by one; of many steps, evenly spread blocks."""


def step_times(tables: Tables) -> StepTimes:
    """Return the times of a run's steps."""
    counts = tables.engine.rows(steps())
    every = -(-total(counts, "steps") // STEPS_READ) or 1
    blocks = tables.engine.rows(steps_in_blocks(every))
    # Median times of steps that drafted, without the probe's own time; a prefill is an outlier.
    drew = whole(blocks, "chains") > 0
    plain = drew & ~(floats(blocks, "recorded") > 0)
    recorded = plain.sum() < ENOUGH_STEPS
    times = [
        (floats(blocks, name) - floats(blocks, "probe_s"))[drew if recorded else plain]
        for name in ("step_s", "draft_s")
    ]
    known, cost = [values[np.isfinite(values)] for values in times], None
    if all(map(len, known)):
        step_s, draft_s = (float(np.median(values)) for values in known)
        if 0 < draft_s < step_s:
            cost = StepCost(step_s=step_s, draft_s=draft_s, recorded=bool(recorded))
    steady = _steady(blocks)
    slow = _slowdown(steady)
    return StepTimes(
        cost=cost,
        cells=_cells(steady),
        slowdown=slow and _with_context(slow, tables),
        probe_s=float(sums_column(counts, "probe_s")[0]),
        step_s=float(sums_column(counts, "step_s")[0]),
        rows=blocks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSteps:
    """Steps of one K and batch size, of all runs that had them."""

    k: int
    batch: int
    runs: int
    verify_s: float
    """Time of a step without the drafter: target, sampling, and the engine around them."""
    draft_s: float
    error: float
    """Relative standard error of the step's time within its runs."""

    @property
    def step_s(self) -> float:
        """Time of the whole step, in seconds."""
        return self.verify_s + self.draft_s

    @property
    def tokens(self) -> int:
        """Number of tokens that the step verifies."""
        return self.batch * (self.k + 1)


def cells_of_runs(runs: Sequence[Sequence[StepCell]]) -> tuple[BatchSteps, ...]:
    """Return one cell per K and batch size; runs of the same K count equally."""
    same: defaultdict[tuple[int, int], list[StepCell]] = defaultdict(list)
    for run in runs:
        for cell in run:
            same[cell.k, cell.batch].append(cell)
    out = []
    for (k, batch), cells in sorted(same.items()):
        n = len(cells)
        errors = [cell.step_error_s / cell.step_s for cell in cells]
        mean = BatchSteps(
            k=k,
            batch=batch,
            runs=n,
            verify_s=sum(cell.step_s - cell.draft_s for cell in cells) / n,
            draft_s=sum(cell.draft_s for cell in cells) / n,
            error=math.sqrt(sum(error**2 for error in errors)) / n,
        )
        out.append(mean)
    return tuple(out)


def run_effect(runs: Sequence[Sequence[StepCell]]) -> float:
    """Return the relative standard deviation between runs of the same server.

    Runs of one K show it. Until there are some, it is the larger of RUN_EFFECT and the differences
    between tenths of a run: another run is no more similar to this one than another part of it is.
    """
    squares = []
    for a, b in combinations(runs, 2):
        # The mean log ratio of step times over batch sizes that both had with the same K.
        b_at = {(cell.k, cell.batch): cell for cell in b}
        both = [(cell, b_at[cell.k, cell.batch]) for cell in a if (cell.k, cell.batch) in b_at]
        if both:
            weights = [min(x.steps, y.steps) for x, y in both]
            logs = [math.log(x.step_s / y.step_s) for x, y in both]
            squares.append(float(np.average(logs, weights=weights)) ** 2 / 2)
    if not squares:
        # A median's error is the spread of tenths of a run over the root of their number.
        cells = [cell for run in runs for cell in run]
        spread = [math.sqrt(GROUPS) * cell.step_error_s / cell.step_s for cell in cells]
        within = np.average(np.square(spread), weights=[cell.steps for cell in cells])
        return max(RUN_EFFECT, float(np.sqrt(within)))
    return math.sqrt((RUN_EFFECT**2 + sum(squares)) / (1 + len(squares)))


FLOOR = 0.5
"""Share of the least measured verification time that fewer tokens take at least: most of a small
step is reading the weights and the engine's own work, which no token saves. driftscope's own
bound."""
_UNKNOWN = 100.0
"""Relative error from which nothing is known; a larger one would overflow."""
_TINY = float(np.finfo(np.float64).tiny)
OFF_LINE = 0.03
"""Relative standard deviation of a step's time from the line through those of the next smaller and
larger measured K, without noise. driftscope's own choice: padding makes steps, a roofline bends."""
MEASURED_SHARE = 0.5
"""Share of the decode steps whose batch sizes must have been measured with a K for it to count as
measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time or speed: a guess or measurement, and the ends between which the truth lies."""

    value: float
    low: float
    high: float
    """May be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """Measured steps, and what they imply for others."""

    cells: tuple[BatchSteps, ...]
    between: float
    """Relative standard deviation of a step's time from one run to the next; 0 to compare times
    within one run."""
    runs: int
    assumed: tuple[str, ...]
    """Quantities that the runs do not measure, with what bounds or replaces each."""
    batches: tuple[int, ...]
    """Batch sizes of the run that is advised."""
    weights: tuple[float, ...]
    """Share of its decode steps, counted once per request, at each of them."""
    curve: tuple[tuple[float, ...], tuple[float, ...]]
    """Tokens and isotonic verification times in seconds."""
    misfit: float
    """Root mean square of the relative differences of measured verification times from `curve`."""

    @property
    def measured_k(self) -> tuple[int, ...]:
        """Every K that was measured at batch sizes with MEASURED_SHARE of the steps, ascending."""
        return tuple(
            k
            for k in sorted({cell.k for cell in self.cells})
            if sum(w for b, w in self.mix if self.cell(b, k)) >= MEASURED_SHARE
        )

    @property
    def mix(self) -> list[tuple[int, float]]:
        """Batch sizes with their weights."""
        return list(zip(self.batches, self.weights, strict=True))

    def cell(self, batch: int, k: int) -> BatchSteps | None:
        """Return the measured steps of a batch size and K, or None."""
        return next((cell for cell in self.cells if (cell.batch, cell.k) == (batch, k)), None)

    def step(self, batch: int, k: int, error: float = 0.0) -> Span:
        """Return the seconds of a step; `error` is a further relative standard error that its
        bounds include."""
        cell = self.cell(batch, k)
        if cell is not None:
            off = self._off(cell, error)
            time_s = cell.step_s
            return Span(value=time_s, low=time_s / off, high=time_s * off)
        verify = self._verify(batch, batch * (k + 1), error)
        draft = self._draft(batch, k, error)
        return Span(
            value=verify.value + draft.value,
            low=verify.low + draft.low,
            high=verify.high + draft.high,
        )

    def trimmed_step(self, batch: int, k: int, verified: float) -> Span:
        """Return the seconds of a step that drafts K tokens for each request and verifies
        `verified` of them on average, at a batch size and K that were measured."""
        cell = self.cell(batch, k)
        assert cell is not None  # noqa: S101  callers try what was measured
        off, tokens = self._off(cell, 0.0), batch * (1.0 + verified)
        verify = self._verify(batch, tokens, 0.0)
        same = sorted((c.tokens, c.verify_s) for c in self.cells if c.batch == batch)
        guess = verify.value
        if len(same) > 1:  # below the fewest tokens, on the line through the first two
            (first, least), (second, more) = same[:2]
            at, seconds = zip(*same, strict=True)
            slope = (more - least) / (second - first)
            guess = float(np.interp(tokens, at, seconds)) - slope * max(first - tokens, 0.0)
        return Span(
            value=min(max(guess, verify.low), verify.high) + cell.draft_s,
            low=verify.low + cell.draft_s / off,
            high=verify.high + cell.draft_s * off,
        )

    def _off(self, cell: BatchSteps, error: float) -> float:
        """Return the factor by which a measured time may be off."""
        spread = math.hypot(cell.error, self.between / math.sqrt(cell.runs), error)
        return math.exp(Z95 * min(spread, _UNKNOWN))

    def _verify(self, batch: int, tokens: float, error: float) -> Span:
        below = [c for c in self.cells if c.batch <= batch and c.tokens <= tokens]
        above = [c for c in self.cells if c.batch >= batch and c.tokens >= tokens]
        low = max((c.verify_s / self._off(c, error) for c in below), default=0.0)
        least = FLOOR * min(c.verify_s / self._off(c, error) for c in self.cells)
        # Linear between measured K of the same batch size, else the nearest of them, scaled by the
        # isotonic curve; without one, the curve.
        same = sorted((c.tokens, c.verify_s) for c in self.cells if c.batch == batch)
        guess = float(np.interp(tokens, *self.curve))
        if same:
            at, seconds = zip(*same, strict=True)
            inside = float(np.interp(tokens, at, seconds))
            nearest = min(max(tokens, at[0]), at[-1])
            here, at_nearest = np.interp([tokens, nearest], *self.curve)
            guess = float(inside * here / at_nearest)
        return _between_neighbours(
            guess,
            max(c.verify_s for c in below) if below else 0.0,
            min(c.verify_s for c in above) if above else math.inf,
            low=low or least,
            high=min((c.verify_s * self._off(c, error) for c in above), default=math.inf),
        )

    def _draft(self, batch: int, k: int, error: float) -> Span:
        if not k:
            return Span(value=0.0, low=0.0, high=0.0)
        drew = [c for c in self.cells if c.k]
        above = [c for c in drew if c.batch >= batch and c.k >= k]
        shares = [(c, min(k / c.k, 1.0)) for c in drew if c.batch <= batch]
        nearest = min((c.batch for c in drew), key=lambda size: (abs(size - batch), size))
        same = sorted((c.k, c.draft_s) for c in drew if c.batch == nearest)
        ks, seconds = zip(*same, strict=True)
        inside = min(max(k, ks[0]), ks[-1])
        return _between_neighbours(
            float(np.interp(inside, ks, seconds) * k / inside),
            max((c.draft_s * share for c, share in shares), default=0.0),
            min((c.draft_s for c in above), default=math.inf),
            low=max((c.draft_s * share / self._off(c, error) for c, share in shares), default=0.0),
            high=min((c.draft_s * self._off(c, error) for c in above), default=math.inf),
        )


def evened(model: CostModel) -> CostModel:
    """Return the model with what is probably the run effect of each K taken off: the part of its
    distance from the line through the next smaller and the next larger measured K that two errors
    of known size explain (best linear prediction).

    The fastest of several measured K is often one whose run happened to be fast.
    """
    ks = model.measured_k
    factors = {}
    for low, k, high in zip(ks, ks[1:], ks[2:], strict=False):
        share, offs, weights = (k - low) / (high - low), [], []
        for batch, weight in model.mix:
            left, here, right = (model.cell(batch, number) for number in (low, k, high))
            if left and here and right:
                line = (1 - share) * left.step_s + share * right.step_s
                offs.append(math.log(here.step_s / line))
                weights.append(weight)
        runs = [max(c.runs for c in model.cells if c.k == number) for number in (k, low, high)]
        own, *near = (model.between**2 / n for n in runs)
        variance = own + (1 - share) ** 2 * near[0] + share**2 * near[1] + OFF_LINE**2
        if offs:
            factors[k] = math.exp(-own / variance * float(np.average(offs, weights=weights)))
    return replace(
        model,
        cells=tuple(
            replace(
                cell,
                verify_s=cell.verify_s * factors.get(cell.k, 1.0),
                draft_s=cell.draft_s * factors.get(cell.k, 1.0),
            )
            for cell in model.cells
        ),
    )


def _between_neighbours(
    guess: float, least: float, most: float, *, low: float, high: float
) -> Span:
    """Return the guess, moved between its measured neighbours, with the given ends. Noise may turn
    the neighbours or the ends around: then they are swapped."""
    least, most = sorted((least, most))
    low, high = sorted((low, high))
    value = min(max(guess, least), most)
    return Span(value=value, low=min(low, value), high=max(high, value))


def fit(runs: Sequence[Sequence[StepCell]]) -> CostModel | None:
    """Return the model of the cells of several runs, of which the first is the one to advise; None
    if no cell of it drafted."""
    from scipy.optimize import isotonic_regression

    if not runs or not any(cell.k for cell in runs[0]):
        return None
    # Leave out recorded steps, which the probe slows, unless no unrecorded step drafted.
    plain = [[cell for cell in run if not cell.recorded] for run in runs]
    enough = any(cell.k for run in plain for cell in run)
    used = plain if enough else [list(run) for run in runs]
    first = used[0] or list(runs[0])
    used = [first, *used[1:]]
    cells, between = cells_of_runs(used), run_effect(used)
    # The isotonic verification times by tokens, weighted by the squared inverse of their
    # errors, and the misfit.
    ordered = sorted(cells, key=lambda cell: cell.tokens)
    times = [cell.verify_s for cell in ordered]
    errors = [c.verify_s * math.hypot(c.error, between / math.sqrt(c.runs)) for c in ordered]
    weights = [1.0 / max(error**2, _TINY) for error in errors]
    fitted = isotonic_regression(times, weights=weights).x.tolist()
    off = [time / at - 1.0 for time, at in zip(times, fitted, strict=True)]
    tokens = tuple(float(cell.tokens) for cell in ordered)
    curve, misfit = (tokens, tuple(fitted)), float(np.sqrt(np.mean(np.square(off))))
    counts = {
        b: sum(c.steps * c.batch for c in first if c.batch == b)
        for b in sorted({cell.batch for cell in first})
    }
    recorded = (_RECORDED,) if any(cell.recorded for run in used for cell in run) else ()
    return CostModel(
        cells=cells,
        between=between,
        runs=sum(1 for run in used if run),
        assumed=(*(() if len({cell.k for cell in cells}) > 1 else (ONE_K,)), *recorded),
        batches=tuple(counts),
        weights=tuple(count / sum(counts.values()) for count in counts.values()),
        curve=curve,
        misfit=misfit,
    )


ONE_K = (
    "only one K was served, so the times of the others are bounds: more tokens take no less time; "
    "a run at another K measures them"
)
_RECORDED = (
    "step times are those of recorded steps, which the probe slows by more than its own time: "
    "record one draft step in 16 (DRIFTSCOPE_EVERY=16) for better ones"
)
