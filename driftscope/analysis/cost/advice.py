"""The best K as the option that vLLM takes, with what it is expected to gain."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from driftscope.analysis.cost.cells import StepCell, pooled
from driftscope.analysis.cost.model import NOT_BY_K, Array, CostModel, fit
from driftscope.analysis.cost.predict import (
    Estimate,
    Prediction,
    beyond,
    gain_of,
    mean_tpot_s,
    overall,
    predict,
    tokens_by_k,
)
from driftscope.analysis.summary import RunSummary
from driftscope.trace.manifest import Manifest

WORTH_SAYING = 0.05
"""Estimated gain in speed below which no other K is suggested. driftscope's own bound: a model of
two straight lines is not trusted to less, whatever its interval says."""
SAME_K_WITHIN = 0.01
"""A batch size keeps its smaller neighbour's K when that costs it no more than this: a schedule of
many ranges for gains below any measurement helps nobody."""
AHEAD = 3
"""Depths beyond K that an extrapolation may reach: each is one more rate that was never
measured."""
ENOUGH_ROUNDS = 200
"""Rounds in a range of context lengths from which a K of its own is worth telling: the standard
error of a marginal rate is then below 0.036."""
FIXED, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
"""vLLM's names (vllm/config/speculative.py, 0.27 to 0.32). BY_BATCH is a list of [first batch size,
last, K], both ends included; the first range starts at 1, and what no range covers takes the K of
the one before."""

NO_SPECULATION = "no --speculative-config"

Range = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the cost model says of one run."""

    run: str
    ran_k: int
    assumed: tuple[str, ...]
    """What the runs given do not identify, and what is taken instead."""
    misfit: float
    by_batch: tuple[Prediction, ...]
    overall: Prediction
    """Over the batch sizes as they were served."""
    schedule: tuple[Range, ...]
    """Best K by batch size."""
    schedule_gain: Estimate
    """Speed of that over the best single K, less 1."""
    beyond: tuple[tuple[int, Estimate], ...]
    """Estimated gain of each K above the one that ran, by extrapolation; empty where
    verification by K is not known at all."""
    by_context: tuple[tuple[str, Prediction], ...]
    """The same as `overall`, with the acceptance of rounds in each range of context lengths."""
    tokens_per_s: float
    """Output tokens per second of the busy engine with the K that ran, all requests together."""
    fixed_command: str | None
    """The option for the best single K, to paste; None where K is to stay."""
    schedule_command: str | None
    """The same for a K by batch size; None where one K is best for all."""

    @property
    def command(self) -> str | None:
        """What to set: a schedule where it gains enough over the best single K, else that K, where
        it gains enough over the one that ran; None where nothing is to change."""
        gain = self.schedule_gain
        if self.schedule_command and gain.value >= WORTH_SAYING and gain.interval.low > 0:
            return self.schedule_command
        return self.fixed_command if self.worth_it else None

    @property
    def worth_it(self) -> bool:
        """Whether the gain is worth saying, and surely one."""
        gain = self.overall.gain
        return gain.value >= WORTH_SAYING and gain.interval.low > 0


class Measured(Protocol):
    """A run with step times: one that speculates, or one that does not."""

    @property
    def manifest(self) -> Manifest: ...  # noqa: D102
    @property
    def cells(self) -> tuple[StepCell, ...]: ...  # noqa: D102


def advise(
    run: RunSummary, others: Sequence[Measured] = (), plain: Measured | None = None
) -> Advice | None:
    """What `run` should have served with; runs of the same models at other K, and one without
    speculation, help to tell.

    None without enough measured steps.
    """
    alike: list[Measured] = [run, *(each for each in others if same_models(run, each))]
    if plain is not None and same_models(run, plain, target_only=True):
        alike.append(plain)
    model = fit(pooled(cell for each in alike for cell in each.cells))
    if model is None:
        return None
    tokens = tokens_by_k(run.acceptance.marginal, run.acceptance.marginal_interval)
    by_batch, whole = predict(model, tokens, run.k), overall(model, tokens, run.k)
    schedule = schedule_of(by_batch)
    return Advice(
        run=run.label,
        ran_k=run.k,
        assumed=model.assumed,
        misfit=model.misfit,
        by_batch=by_batch,
        overall=whole,
        schedule=schedule,
        schedule_gain=_schedule_gain(model, tokens, whole.best_k, schedule),
        beyond=() if NOT_BY_K in model.assumed else beyond(model, tokens, AHEAD),
        by_context=_by_context(run, model),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=_fixed(run, whole.best_k),
        schedule_command=_by_batch(run, schedule) if len(schedule) > 1 else None,
    )


def same_models(a: Measured, b: Measured, *, target_only: bool = False) -> bool:
    """Whether step times of two runs can be pooled: same models, executed alike. `target_only`: one
    of the two does not draft."""
    names = ["engine", "runner", "mode", "tensor_parallel", "target"]
    names += [] if target_only else ["drafter", "method"]
    return all(getattr(a.manifest, name) == getattr(b.manifest, name) for name in names)


def schedule_of(by_batch: Sequence[Prediction]) -> tuple[Range, ...]:
    """Ranges of batch sizes with their best K; a range goes on until the next one starts."""
    starts: list[tuple[int, int]] = []
    for at in by_batch:
        times = [each.value for each in at.tpot_s]
        if starts and times[starts[-1][1]] <= times[at.best_k] * (1 + SAME_K_WITHIN):
            continue
        starts.append((at.batch if starts else 1, at.best_k))
    ends = [first - 1 for first, _ in starts[1:]] + [by_batch[-1].batch]
    return tuple((first, end, k) for (first, k), end in zip(starts, ends, strict=True))


def _schedule_gain(
    model: CostModel, tokens: Sequence[Array], fixed: int, schedule: Sequence[Range]
) -> Estimate:
    own = {b: k for first, end, k in schedule for b in model.batches if first <= b <= end}
    now = mean_tpot_s(model, tokens, dict.fromkeys(model.batches, fixed))
    return gain_of(now, mean_tpot_s(model, tokens, own))


def _tokens_per_s(model: CostModel, run: RunSummary) -> float:
    """Every batch size counts by its steps."""
    steps = [weight / batch for batch, weight in zip(model.batches, model.weights, strict=True)]
    times = [float(model.step_s(batch, run.k)[0]) for batch in model.batches]
    busy_s = sum(n * time_s for n, time_s in zip(steps, times, strict=True))
    return run.acceptance.mean_length * sum(model.weights) / busy_s


def _fixed(run: RunSummary, k: int) -> str | None:
    if k == run.k:
        return None
    return _config(run, {FIXED: k}) if k else NO_SPECULATION


def _by_batch(run: RunSummary, schedule: Sequence[Range]) -> str:
    most = max(k for _, _, k in schedule)
    return _config(run, {FIXED: most, BY_BATCH: [list(each) for each in schedule]})


def _config(run: RunSummary, options: Mapping[str, Any]) -> str:
    config = {"method": run.manifest.method, "model": run.manifest.drafter.name, **options}
    return f"--speculative-config {shlex.quote(json.dumps(config))}"


def _by_context(run: RunSummary, model: CostModel) -> tuple[tuple[str, Prediction], ...]:
    """Step times are taken as the same at all context lengths: a step does not say its own."""
    return tuple(
        (group.name, overall(model, tokens_by_k(group.marginal, group.marginal_interval), run.k))
        for group in run.groups.context
        if group.rounds >= ENOUGH_ROUNDS
    )
