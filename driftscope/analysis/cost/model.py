"""The cost model: time of a step for any K and batch size, fitted on measured ones.

    verify_s(b, K) = v0 + v1 b + v2 b K             target, sampling, and the engine around them
    draft_s(b, K)  = d0 + d1 b + d2 K + d3 b K      the drafter, for K of 1 or more

No coefficient is negative: more work takes no less time. Runs that do not tell some of them apart
get fewer, by an assumption that `CostModel.assumed` states.

Intervals are of what another run would take, not of a mean: beside the errors of the measured
medians they hold that runs differ from each other (`CostModel.between`), both those that were
fitted and the one that is predicted, and everything between an assumption and its opposite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.step_cells import GROUPS, StepCell

DRAWS = 400
"""Refits from which the intervals come; the ends of a 95% interval are then its 10th values."""
SEED = 20260511
_MISFIT, _BETWEEN, _UNTOLD = 100, 1100, 2100
"""Streams of random numbers. The first two are one for each K from there on."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """Fitted coefficients: one row per draw, the first one fitted on the measurements as they
    are."""

    verify: Array
    """[1 + DRAWS, 3] v0, v1, v2."""
    draft: Array
    """[1 + DRAWS, 4] d0 .. d3."""
    misfit: float
    """Root mean square of the relative residuals of whole steps, 0 where no measurement is left
    over to show any."""
    between: float
    """Relative standard deviation of a step's time from one run to the next. Not known of runs that
    were served once: taken from how medians of tenths of a run differ, since another run is no more
    like this one than another part of it is. (The same engine started again and again: 8 to 13 % on
    a busy CPU, about 1 % on a GPU under CUDA graphs; benchmarks/results, overhead.)"""
    assumed: tuple[str, ...]
    """What the runs do not tell, and what is taken instead."""
    batches: tuple[int, ...]
    """Batch sizes that were measured; others are not spoken of."""
    weights: tuple[float, ...]
    """Share of the decode steps of single requests that each of them has."""
    measured_k: tuple[int, ...]

    def step_s(self, batch: int, k: int) -> Array:
        """[1 + DRAWS] seconds of a step; each K is off by its own share of the misfit, and as
        another run is."""
        verify = self.verify @ np.array([1.0, batch, batch * k])
        draft = self.draft @ np.array([1.0, batch, k, batch * k]) if k else 0.0
        error = float(np.hypot(self.misfit, self.between))
        random = np.random.RandomState(SEED + _MISFIT + k)
        off = np.exp(error * np.append(0.0, random.standard_normal(DRAWS)))
        return np.asarray((verify + draft) * off)


def fit(cells: Sequence[StepCell]) -> CostModel | None:
    """The model of `cells`, one per K and batch size; None without a cell that drafted."""
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
    """[1 + DRAWS, cells] the measurement itself, then normal errors around it."""
    value, error = np.array(measured).T
    noise = np.random.RandomState(seed).standard_normal((DRAWS, len(value)))
    return np.vstack([value, np.maximum(value + error * noise, 0.0)])


def _between(cells: Sequence[StepCell]) -> float:
    """From the errors of medians, which are those of GROUPS groups' over the root of GROUPS."""
    spread = [math.sqrt(GROUPS) * cell.step_error_s / cell.step_s for cell in cells]
    return float(np.sqrt(np.average(np.square(spread), weights=[c.steps for c in cells])))


def _run(k: int, between: float) -> Array:
    """[1 + DRAWS] how much slower the run at this K was than others: all of its cells together."""
    random = np.random.RandomState(SEED + _BETWEEN + k)
    return np.exp(between * np.append(0.0, random.standard_normal(DRAWS)))


def _untold(stream: int) -> Array:
    """[1 + DRAWS, 1] where between an assumption, 0, and its opposite, 1, the truth lies."""
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
    """[1 + DRAWS, coefficients] as assumed in the first row, anything between the two after it."""
    share = _untold(stream)
    return np.asarray((1.0 - share) * assumed + share * opposite)


def _solve(terms: Sequence[Array], seconds: Array, spread: Array) -> Array:
    """[draws, coefficients] least squares of the relative residuals, none negative; `spread` puts
    what was fitted into the model's own coefficients."""
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
