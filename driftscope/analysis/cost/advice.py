"""The best K as the option that vLLM takes, with what it is expected to gain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.analysis.cost.cells import pooled
from driftscope.analysis.cost.model import CostModel, fit
from driftscope.analysis.cost.predict import Prediction, overall, predict, tokens_by_k
from driftscope.analysis.summary import RunSummary

WORTH_SAYING = 0.05
"""Estimated gain in speed below which no other K is suggested. The model's error against really
run engines is of that size (`make prediction`)."""
SAME_K_WITHIN = 0.01
"""A batch size keeps its smaller neighbour's K when that costs it no more than this: a schedule of
many ranges for gains below any measurement helps nobody."""
ENOUGH_ROUNDS = 200
"""Rounds in a range of context lengths from which a K of its own is worth telling: the standard
error of a marginal rate is then below 0.036."""
FIXED, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
"""vLLM's names (vllm/config/speculative.py, 0.27 to 0.32). BY_BATCH is a list of [first batch size,
last, K], both ends included; the first range starts at 1, and what no range covers takes the K of
the one before."""

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
    by_context: tuple[tuple[str, Prediction], ...]
    """The same as `overall`, with the acceptance of rounds in each range of context lengths."""
    options: Mapping[str, Any]
    """Keys of vLLM's --speculative-config to set; empty where the K that ran is to stay, or where
    speculation is to be left out."""
    command: str | None
    """The option to paste, None where nothing is to change."""

    @property
    def worth_it(self) -> bool:
        """Whether the gain is worth saying, and surely one."""
        gain = self.overall.gain
        return gain.value >= WORTH_SAYING and gain.interval.low > 0


def advise(run: RunSummary, others: Sequence[RunSummary] = ()) -> Advice | None:
    """What `run` should have served with; runs of the same models at other K help to tell.

    None without enough measured steps.
    """
    alike = [each for each in (run, *others) if same_engine(run, each)]
    model = fit(pooled(cell for each in alike for cell in each.cells))
    if model is None:
        return None
    tokens = tokens_by_k(run.acceptance.marginal, run.acceptance.marginal_interval)
    by_batch, whole = predict(model, tokens, run.k), overall(model, tokens, run.k)
    schedule = schedule_of(by_batch)
    options = options_of(whole, schedule, run.k)
    return Advice(
        run=run.label,
        ran_k=run.k,
        assumed=model.assumed,
        misfit=model.misfit,
        by_batch=by_batch,
        overall=whole,
        schedule=schedule,
        by_context=_by_context(run, model),
        options=options,
        command=_command(run, whole, options),
    )


def same_engine(a: RunSummary, b: RunSummary) -> bool:
    """Whether step times of two runs can be pooled: same target and drafter, executed alike."""
    return all(
        getattr(a.manifest, name) == getattr(b.manifest, name)
        for name in ("engine", "runner", "mode", "tensor_parallel", "attention_backend")
    ) and (a.manifest.target, a.manifest.drafter) == (b.manifest.target, b.manifest.drafter)


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


def options_of(whole: Prediction, schedule: Sequence[Range], ran_k: int) -> dict[str, Any]:
    """The options to set, none where K should stay as it is or be 0 for all."""
    if len(schedule) > 1:
        most = max(k for _, _, k in schedule)
        return {FIXED: most, BY_BATCH: [list(each) for each in schedule]}
    return {} if whole.best_k in (0, ran_k) else {FIXED: whole.best_k}


def _command(run: RunSummary, whole: Prediction, options: Mapping[str, Any]) -> str | None:
    if options:
        config = {"method": run.manifest.method, "model": run.manifest.drafter.name, **options}
        return f"--speculative-config '{json.dumps(config)}'"
    return None if whole.best_k == run.k else "no --speculative-config"


def _by_context(run: RunSummary, model: CostModel) -> tuple[tuple[str, Prediction], ...]:
    """Step times are taken as the same at all context lengths: a step does not say its own."""
    return tuple(
        (group.name, overall(model, tokens_by_k(group.marginal, group.marginal_interval), run.k))
        for group in run.groups.context
        if group.rounds >= ENOUGH_ROUNDS
    )
