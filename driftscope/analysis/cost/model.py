"""The cost model: time of a step for any K and batch size, fitted on measured ones.

    verify_s(b, K) = v0 + v1 b + v2 b K             target, sampling, and the engine around them
    draft_s(b, K)  = d0 + d1 b + d2 K + d3 b K      the drafter, for K of 1 or more

No coefficient is negative: more work takes no less time. Runs that do not tell some of them apart
get fewer, by an assumption that `CostModel.assumed` states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.cost.cells import StepCell

DRAWS = 400
"""Refits from which the intervals come; the ends of a 95% interval are then its 10th values."""
SEED = 20260511
_MISFIT = 100
"""Streams of random numbers: this and above are the misfit's, one for each K."""
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
    assumed: tuple[str, ...]
    """What the runs do not tell, and what is taken instead."""
    batches: tuple[int, ...]
    """Batch sizes that were measured; others are not spoken of."""
    weights: tuple[float, ...]
    """Share of the decode steps of single requests that each of them has."""
    measured_k: tuple[int, ...]

    def step_s(self, batch: int, k: int) -> Array:
        """[1 + DRAWS] seconds of a step; each K is off by its own share of the misfit."""
        verify = self.verify @ np.array([1.0, batch, batch * k])
        draft = self.draft @ np.array([1.0, batch, k, batch * k]) if k else 0.0
        random = np.random.RandomState(SEED + _MISFIT + k)
        off = 1.0 + self.misfit * np.append(0.0, random.standard_normal(DRAWS))
        return np.asarray((verify + draft) * off)


def fit(cells: Sequence[StepCell]) -> CostModel | None:
    """The model of `cells`, one per K and batch size; None without a cell that drafted."""
    if not any(cell.k for cell in cells):
        return None
    k = np.array([cell.k for cell in cells], dtype=np.float64)
    batch = np.array([cell.batch for cell in cells], dtype=np.float64)
    whole, drafted = _draws([(c.step_s, c.step_error_s) for c in cells]), _draws(
        [(c.draft_s, c.draft_error_s) for c in cells], seed=SEED + 1
    )  # fmt: skip
    verify, about_verify = _fit_verify(k, batch, whole - drafted)
    draft, about_draft = _fit_draft(k, batch, drafted)
    misfit = _misfit(cells, verify[0], draft[0])
    counts = {int(b): sum(c.steps * c.batch for c in cells if c.batch == b) for b in set(batch)}
    recorded = (_RECORDED,) if any(cell.recorded for cell in cells) else ()
    return CostModel(
        verify=verify,
        draft=draft,
        misfit=misfit,
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


def _fit_verify(k: Array, batch: Array, seconds: Array) -> tuple[Array, tuple[str, ...]]:
    one, tokens = np.ones_like(k), batch * (k + 1.0)
    if len(np.unique(k)) > 1:
        return _solve([one, batch, batch * k], seconds, np.eye(3)), ()
    if len(np.unique(batch)) > 1:
        spread = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
        return _solve([one, tokens], seconds, spread), (_BY_TOKENS,)
    return _solve([one], seconds, np.array([[1.0, 0.0, 0.0]])), (NOT_BY_K,)


def _fit_draft(k: Array, batch: Array, seconds: Array) -> tuple[Array, tuple[str, ...]]:
    drew = k > 0
    k, batch, seconds = k[drew], batch[drew], seconds[:, drew]
    one = np.ones_like(k)
    if len(np.unique(k)) > 1:
        return _solve([one, batch, k, batch * k], seconds, np.eye(4)), ()
    spread = np.array([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    return _solve([k, batch * k], seconds, spread), (_PROPORTIONAL,)


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
