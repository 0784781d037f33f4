"""Step times of one or several runs, by K and batch size, and how much runs differ."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from driftscope.analysis.figures.steps import GROUPS, StepCell

RUN_EFFECT = 0.05
"""Relative standard deviation of a step's time from one run to the next, until two runs of one K
show it. driftscope's own choice: the same engine started again differs by about 1 % on a GPU under
CUDA graphs and by 8 to 13 % on a busy CPU (benchmarks/results, overhead). It counts like one pair
of runs beside those that are measured, because one pair may agree by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
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


def unrecorded(runs: Sequence[Sequence[StepCell]]) -> list[list[StepCell]]:
    """Return the cells of each run without those of recorded steps, which the probe slows; with
    them if no unrecorded step drafted."""
    plain = [[cell for cell in run if not cell.recorded] for run in runs]
    enough = any(cell.k for run in plain for cell in run)
    return plain if enough else [list(run) for run in runs]


def cells_of_runs(runs: Sequence[Sequence[StepCell]]) -> tuple[Cell, ...]:
    """Return one cell per K and batch size; runs of the same K count equally."""
    same: defaultdict[tuple[int, int], list[StepCell]] = defaultdict(list)
    for run in runs:
        for cell in run:
            same[cell.k, cell.batch].append(cell)
    return tuple(_mean(cells) for _, cells in sorted(same.items()))


def _mean(cells: Sequence[StepCell]) -> Cell:
    n = len(cells)
    errors = [cell.step_error_s / cell.step_s for cell in cells]
    return Cell(
        k=cells[0].k,
        batch=cells[0].batch,
        runs=n,
        verify_s=sum(cell.step_s - cell.draft_s for cell in cells) / n,
        draft_s=sum(cell.draft_s for cell in cells) / n,
        error=math.sqrt(sum(error**2 for error in errors)) / n,
    )


def run_effect(runs: Sequence[Sequence[StepCell]]) -> float:
    """Return the relative standard deviation between runs of the same server.

    Runs of one K show it. Until there are some, it is the larger of RUN_EFFECT and the differences
    between tenths of a run: another run is no more similar to this one than another part of it is.
    """
    squares = [
        each**2 / 2 for a, b in combinations(runs, 2) if (each := _log_ratio(a, b)) is not None
    ]
    if not squares:
        return max(RUN_EFFECT, _within([cell for run in runs for cell in run]))
    return math.sqrt((RUN_EFFECT**2 + sum(squares)) / (1 + len(squares)))


def _log_ratio(a: Sequence[StepCell], b: Sequence[StepCell]) -> float | None:
    """Return the mean log ratio of the step times of two runs, over batch sizes that both had with
    the same K; None if there is none."""
    there = {(cell.k, cell.batch): cell for cell in b}
    both = [(cell, there[cell.k, cell.batch]) for cell in a if (cell.k, cell.batch) in there]
    if not both:
        return None
    steps = [min(x.steps, y.steps) for x, y in both]
    return float(np.average([math.log(x.step_s / y.step_s) for x, y in both], weights=steps))


def _within(cells: Sequence[StepCell]) -> float:
    """Return how much tenths of a run differ: a median's error is their spread over the root of
    their number."""
    spread = [math.sqrt(GROUPS) * cell.step_error_s / cell.step_s for cell in cells]
    return float(np.sqrt(np.average(np.square(spread), weights=[c.steps for c in cells])))
