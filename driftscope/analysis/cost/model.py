"""The cost model: time of a step for any K and batch size, fitted to measured steps.

    verify_s(b, K) = v0 + v1 b + v2 b K             target, sampling, and the engine around them
    draft_s(b, K)  = d0 + d1 b + d2 K + d3 b K      the drafter, for K of 1 or more

No coefficient is negative: more work takes no less time. If the runs do not identify all of them,
fewer are fitted, under an assumption that `CostModel.assumed` states.

Intervals cover the time of another run, not a mean: besides the errors of the measured
medians they include the variation between runs (`CostModel.between`), both of the runs that were
fitted and of the one that is predicted, and all cases between an assumption and its opposite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.step_cells import GROUPS, StepCell

DRAWS = 400
"""Number of refits from which the intervals come; the ends of a 95% interval are then its 10th
values."""
SEED = 20260511
_MISFIT, _BETWEEN, _UNTOLD = 100, 1100, 2100
"""Offsets of the seeds of random streams. The first two are bases to which K is added."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """Fitted coefficients, one row per draw; the first row is fitted to the measurements
    themselves."""

    verify: Array
    """Coefficients v0, v1, v2 of verification, [1 + DRAWS, 3]."""
    draft: Array
    """Coefficients d0 .. d3 of drafting, [1 + DRAWS, 4]."""
    misfit: float
    """Root mean square of the relative residuals of whole steps; 0 if there are no more
    measurements than coefficients."""
    between: float
    """Relative standard deviation of a step's time from one run to the next. It is not known for
    runs that were served once: it is then taken from how the medians of tenths of a run differ,
    because another run is no more similar to this one than another part of it is. (The same engine
    started again and again: 8 to 13 % on a busy CPU, about 1 % on a GPU under CUDA graphs;
    benchmarks/results, overhead.)"""
    assumed: tuple[str, ...]
    """Quantities that the runs do not identify, with the assumption made in place of each."""
    batches: tuple[int, ...]
    """Batch sizes that were measured; there are no predictions for others."""
    weights: tuple[float, ...]
    """Share of the decode steps, counted once per request, at each batch size."""
    measured_k: tuple[int, ...]

    def step_s(self, batch: int, k: int) -> Array:
        """Return the seconds of a step, [1 + DRAWS]; the draws vary each K by the misfit and by the
        variation between runs."""
        verify = self.verify @ np.array([1.0, batch, batch * k])
        draft = self.draft @ np.array([1.0, batch, k, batch * k]) if k else 0.0
        error = float(np.hypot(self.misfit, self.between))
        random = np.random.RandomState(SEED + _MISFIT + k)
        off = np.exp(error * np.append(0.0, random.standard_normal(DRAWS)))
        return np.asarray((verify + draft) * off)


def fit(cells: Sequence[StepCell]) -> CostModel | None:
    """Fit the model to `cells`, one per K and batch size; None if no cell drafted."""
    if not any(cell.k for cell in cells):
        return None
    k = np.array([cell.k for cell in cells], dtype=np.float64)
    batch = np.array([cell.batch for cell in cells], dtype=np.float64)
    between = _between(cells)
    runs = np.stack([_run(int(each), between) for each in k], axis=1)
    whole = _draws([(c.step_s, c.step_error_s) for c in cells]) * runs
    drafted = _draws([(c.draft_s, c.draft_error_s) for c in cells], seed=SEED + 1) * runs
    verify, about_verify = _fit_verify(k, batch, whole - drafted)
    draft, about_draft = _fit_draft(k, batch, drafted)
    misfit = _misfit(cells, verify[0], draft[0])
    counts = {int(b): sum(c.steps * c.batch for c in cells if c.batch == b) for b in set(batch)}
    recorded = (_RECORDED,) if any(cell.recorded for cell in cells) else ()
    return CostModel(
        verify=verify,
        draft=draft,
        misfit=misfit,
        between=between,
        assumed=(*about_verify, *about_draft, *recorded),
        batches=tuple(sorted(counts)),
        weights=tuple(counts[b] / sum(counts.values()) for b in sorted(counts)),
        measured_k=tuple(sorted({cell.k for cell in cells})),
    )


def _draws(measured: Sequence[tuple[float, float]], seed: int = SEED) -> Array:
    """Return the measurement itself, then draws with normal errors around it, [1 + DRAWS,
    cells]."""
    value, error = np.array(measured).T
    noise = np.random.RandomState(seed).standard_normal((DRAWS, len(value)))
    return np.vstack([value, np.maximum(value + error * noise, 0.0)])


def _between(cells: Sequence[StepCell]) -> float:
    """Return the variation between runs, from the errors of medians: a median's error is the spread
    of GROUPS groups over the root of GROUPS."""
    spread = [math.sqrt(GROUPS) * cell.step_error_s / cell.step_s for cell in cells]
    return float(np.sqrt(np.average(np.square(spread), weights=[c.steps for c in cells])))


def _run(k: int, between: float) -> Array:
    """Return how much slower the run at this K was than others, [1 + DRAWS]; it applies to all
    cells of that K."""
    random = np.random.RandomState(SEED + _BETWEEN + k)
    return np.exp(between * np.append(0.0, random.standard_normal(DRAWS)))


def _untold(stream: int) -> Array:
    """Return random positions of the truth between an assumption, 0, and its opposite, 1, [1 +
    DRAWS, 1]."""
    random = np.random.RandomState(SEED + _UNTOLD + stream)
    return np.append(0.0, random.random_sample(DRAWS))[:, None]


def _fit_verify(k: Array, batch: Array, seconds: Array) -> tuple[Array, tuple[str, ...]]:
    one, tokens = np.ones_like(k), batch * (k + 1.0)
    if len(np.unique(k)) > 1:
        return _solve([one, batch, batch * k], seconds, np.eye(3)), ()
    if len(np.unique(batch)) > 1:
        by_tokens = _solve([one, tokens], seconds, np.array([[1.0, 0, 0], [0, 1.0, 1.0]]))
        by_requests = by_tokens * [1.0, k[0] + 1.0, 0.0]
        return _between_both(by_tokens, by_requests, 0), (_BY_TOKENS,)
    same = _solve([one], seconds, np.array([[1.0, 0.0, 0.0]]))
    each = same[:, :1] / tokens[0]
    return _between_both(same, each * [0.0, 1.0, 1.0], 0), (NOT_BY_K,)


def _fit_draft(k: Array, batch: Array, seconds: Array) -> tuple[Array, tuple[str, ...]]:
    drew = k > 0
    k, batch, seconds = k[drew], batch[drew], seconds[:, drew]
    one = np.ones_like(k)
    if len(np.unique(k)) > 1:
        return _solve([one, batch, k, batch * k], seconds, np.eye(4)), ()
    spread = np.array([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    by_depth = _solve([k, batch * k], seconds, spread)
    at_once = np.hstack([by_depth[:, 2:] * k[0], np.zeros_like(by_depth[:, 2:])])
    return _between_both(by_depth, at_once, 1), (_PROPORTIONAL,)


def _between_both(assumed: Array, opposite: Array, stream: int) -> Array:
    """Return coefficients as assumed in the first row, and between `assumed` and `opposite` in the
    others, [1 + DRAWS, coefficients]."""
    share = _untold(stream)
    return np.asarray((1.0 - share) * assumed + share * opposite)


def _solve(terms: Sequence[Array], seconds: Array, spread: Array) -> Array:
    """Return the least-squares solution of the relative residuals, with no negative coefficient,
    [draws, coefficients]; `spread` maps the fitted coefficients to the model's own."""
    from scipy.optimize import nnls

    work = np.stack(terms, axis=1)
    scale = np.maximum(seconds[0], np.finfo(np.float64).tiny)[:, None]
    size = np.maximum(np.abs(work / scale).max(axis=0), np.finfo(np.float64).tiny)
    fitted = [nnls(work / scale / size, draw / scale[:, 0])[0] / size for draw in seconds]
    return np.asarray(np.array(fitted) @ spread)


def _misfit(cells: Sequence[StepCell], verify: Array, draft: Array) -> float:
    residuals = []
    for cell in cells:
        work = np.array([1.0, cell.batch, cell.batch * cell.k])
        chain = np.array([1.0, cell.batch, cell.k, cell.batch * cell.k]) * (cell.k > 0)
        residuals.append((verify @ work + draft @ chain) / cell.step_s - 1.0)
    used = int((verify > 0).sum() + (draft > 0).sum())
    left = 2 * len(cells) - used
    return float(np.sqrt(np.square(residuals).sum() / left)) if left > 0 else 0.0


NOT_BY_K = (
    "verification time by K is not identified: one K and one batch size were served, so it is "
    "taken as the same for every K; record a run at another K, or give one without speculation"
)
_BY_TOKENS = (
    "verification time by K is not identified directly: one K was served, at several batch sizes, "
    "so it is taken to depend on the number of tokens verified; a run at another K settles it"
)
_PROPORTIONAL = (
    "drafting time by depth is not identified: one K was served, so it is taken as proportional "
    "to K"
)
_RECORDED = (
    "step times are of recorded steps, which the probe slows beyond its own time: record one "
    "draft step in 16 (DRIFTSCOPE_EVERY=16) for better ones"
)
