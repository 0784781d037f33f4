"""Advice on the best K, as the option that vLLM takes, with its expected gain."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from driftscope.analysis.cost.model import DRAWS, NOT_BY_K, Array, CostModel, fit
from driftscope.analysis.cost.predict import (
    WIDEST,
    Estimate,
    Prediction,
    beyond,
    gain_of,
    mean_tpot_s,
    overall,
    predict,
    served_tpot_s,
    tokens_by_k,
)
from driftscope.analysis.cost.served import Served, served_of
from driftscope.analysis.figures.step_cells import MIN_STEPS, StepCell, pooled
from driftscope.analysis.number_words import count
from driftscope.analysis.statistics.interval import FEW_REQUESTS, Interval
from driftscope.analysis.summary.acceptance_by_k import first_token_differs
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary import strict_json
from driftscope.trace.format.manifest import Manifest

WORTH_SAYING = 0.05
"""Estimated gain in speed below which no other K is suggested. This is driftscope's own bound:
smaller gains by a model of two straight lines are not trusted, whatever their interval."""
SAME_K_WITHIN = 0.01
"""Largest relative cost at which a batch size keeps its smaller neighbour's K: a schedule of many
ranges for gains below any measurement helps nobody."""
AHEAD = 3
"""Depths beyond K that an extrapolation may reach; the rate of each of them was never measured."""
ENOUGH_ROUNDS = 200
"""Smallest number of rounds in a range of context lengths for which a separate K is reported: the
standard error of a marginal rate is then below 0.036."""
FIXED, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
"""vLLM's option names (vllm/config/speculative.py, 0.27 to 0.32). BY_BATCH is a list of [first
batch size, last, K], both ends included. The first range starts at 1, and a batch size that no
range covers takes the K of the range before it."""

_POOLED = (
    "acceptance by depth is of all rounds that drafted the depth, whatever decided their K; it is "
    "taken to be the same at every batch size"
)
NO_SPECULATION = "no --speculative-config"
DEAD_LENGTH = 1.05
"""Acceptance length below which a drafter is useless at every K, compared with the upper end of its
95% interval: one accepted token in twenty rounds does not pay for drafting. The rule
`nothing_accepted` has the same bound for the first depth."""
RULE_OF_THREE = 3.0
"""Upper end of the 95% interval of a rate that was 0 in n cases, times n (Hanley and Lippman-Hand
1983)."""

Range = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice of the cost model for one run."""

    run: str
    ran_k: int
    """Length of the longest chain."""
    served: Served
    """K of each step as served."""
    assumed: tuple[str, ...]
    """Quantities that the runs do not identify, with the assumption made in place of each."""
    misfit: float
    by_batch: tuple[Prediction, ...]
    overall: Prediction
    """Prediction over the batch sizes as they were served."""
    schedule: tuple[Range, ...]
    """Best K by range of batch sizes."""
    schedule_gain: Estimate
    """Speed of the schedule over the best single K, minus 1; in a run of several K, over K as
    served."""
    beyond: tuple[tuple[int, Estimate], ...]
    """Estimated gain of each K above the one that ran, by extrapolation; empty if the dependence of
    verification on K is unknown."""
    by_context: tuple[tuple[str, Prediction], ...]
    """Predictions like `overall`, with the acceptance of rounds in each range of context
    lengths."""
    tokens_per_s: float | None
    """Output tokens per second of the busy engine with the K that ran, all requests together; None
    if the model predicts a step time of 0."""
    doubt: str | None = None
    """Reason why the fastest K is not known, and what to record; None if it is known."""
    useless: bool = False
    """Whether next to nothing is accepted, see DEAD_LENGTH: then K = 0 is the fastest, whatever a
    step costs."""
    least_gain: float | None = None
    """Lower bound of the speed with K = 0 over that with the K that ran, minus 1. It assumes that
    steps without a draft only save the drafter's time and yield one token: measured within the same
    steps, it needs no model. None if it is not above 0, or if the steps of the run were not
    measured."""
    fixed_command: str | None
    """Option for the best single K, to paste; None if K should stay."""
    schedule_command: str | None
    """Option for a K by batch size, to paste; None if one K is best for all batch sizes."""

    @property
    def command(self) -> str | None:
        """Option to set: a schedule if it gains enough over the best single K, otherwise that K if
        it gains enough over the one that ran; None if nothing should change."""
        if self.surely_slower:
            return NO_SPECULATION
        if self.schedule_worth_it:
            return self.schedule_command
        return self.fixed_command if self.worth_it else None

    @property
    def worth_it(self) -> bool:
        """Whether the gain of the best K is certain and large enough to report."""
        return self.useless or (self.doubt is None and _worth(self.overall.gain))

    @property
    def surely_slower(self) -> bool:
        """Whether K = 0 surely gains enough over the K that ran, although the fastest K is not
        known."""
        return self.doubt is not None and (self.least_gain or 0.0) >= WORTH_SAYING

    @property
    def schedule_worth_it(self) -> bool:
        """Whether a K by batch size gains enough over the best single K to report it."""
        several = self.schedule_command is not None
        return several and self.doubt is None and _worth(self.schedule_gain)


class Measured(Protocol):
    """Run with step times, with or without speculation."""

    @property
    def manifest(self) -> Manifest: ...  # noqa: D102
    @property
    def cells(self) -> tuple[StepCell, ...]: ...  # noqa: D102


def advise(
    run: RunSummary, others: Sequence[Measured] = (), plain: Measured | None = None
) -> Advice | None:
    """Return the advice for `run`; runs of the same models at another K, and one without
    speculation, make it more certain.

    Returns None without enough measured steps.
    """
    alike: list[Measured] = [run, *(each for each in others if same_models(run, each))]
    if plain is not None and same_models(run, plain, target_only=True):
        alike.append(plain)
    model = fit(pooled(cell for each in alike for cell in each.cells))
    if model is None:
        return None
    if _useless(run):
        return _without(run, model)
    tokens = tokens_by_k(run.acceptance.marginal, run.acceptance.marginal_interval)
    served = _served(run)
    by_batch, whole = predict(model, tokens, served), overall(model, tokens, served)
    schedule = schedule_of(by_batch)
    fixed = dict.fromkeys(model.batches, whole.best_k)
    now = served_tpot_s(model, tokens, served) if served.mixed else None
    return Advice(
        run=run.label,
        ran_k=run.k,
        served=served,
        assumed=(*model.assumed, *((_POOLED,) if served.mixed else ())),
        misfit=model.misfit,
        by_batch=by_batch,
        overall=whole,
        schedule=schedule,
        schedule_gain=_schedule_gain(
            model, tokens, mean_tpot_s(model, tokens, fixed) if now is None else now, schedule
        ),
        beyond=() if NOT_BY_K in model.assumed else beyond(model, tokens, AHEAD),
        by_context=_by_context(run, model),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=_fixed(run, whole.best_k),
        schedule_command=_by_batch(run, schedule) if len(schedule) > 1 else None,
        doubt=_doubt(run, model, whole),
        least_gain=_least_gain(run),
    )


def _worth(gain: Estimate) -> bool:
    return gain.value >= WORTH_SAYING and gain.surely_above(0.0)


def _length_at_most(run: RunSummary) -> float:
    """Return the upper end of the acceptance length, also if no round accepted anything."""
    if run.acceptance.mean_length <= 1.0:
        return 1.0 + RULE_OF_THREE / run.rounds
    spread = run.acceptance.mean_length_interval
    return math.inf if spread is None else spread.high


def _useless(run: RunSummary) -> bool:
    return _length_at_most(run) < DEAD_LENGTH


def _least_gain(run: RunSummary) -> float | None:
    """Return `Advice.least_gain`: a step without the drafter, which verifies one token instead of K
    + 1, takes at most as long as a step that drafts, minus the drafter's time in it."""
    drafted = [cell for cell in run.cells if cell.k]
    whole = sum(cell.steps * cell.batch * cell.step_s for cell in drafted)
    rest = whole - sum(cell.steps * cell.batch * cell.draft_s for cell in drafted)
    gain = whole / rest / _length_at_most(run) - 1.0 if rest > 0 else 0.0
    return gain if gain > 0 else None


def _without(run: RunSummary, model: CostModel) -> Advice:
    """Return the advice for a useless drafter: each round yields one token, whatever K."""
    tokens, least_gain, served = _one_token_each(run.k), _least_gain(run), _served(run)
    whole = _at_none(overall(model, tokens, served), least_gain)
    by_batch = tuple(_at_none(each, None) for each in predict(model, tokens, served))
    return Advice(
        run=run.label,
        ran_k=run.k,
        served=served,
        assumed=model.assumed,
        misfit=model.misfit,
        by_batch=by_batch,
        overall=whole,
        schedule=((1, model.batches[-1], 0),),
        schedule_gain=Estimate(value=0.0, interval=Interval(low=0.0, high=0.0)),
        beyond=(),
        by_context=(),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=NO_SPECULATION,
        schedule_command=None,
        useless=True,
        least_gain=least_gain,
    )


def _at_none(found: Prediction, least: float | None) -> Prediction:
    """Return the prediction with K = 0 as the best K, and with at least the gain `least`."""
    value = found.ran.value / found.tpot_s[0].value - 1.0
    spread = found.gain.interval if found.best_k == 0 else None
    if least is not None:
        value = value if value > least else least
        spread = spread and Interval.of(max(spread.low, least), max(spread.high, value))
    return replace(found, best_k=0, gain=Estimate(value=value, interval=spread))


def _doubt(run: RunSummary, model: CostModel, whole: Prediction) -> str | None:
    """Return why the best K is not known, and what to record; None if it is known."""
    spread = run.acceptance.marginal_interval
    if spread is None or not all(spread):
        return (
            "one request decides the acceptance: its rates have no 95% interval; record "
            f"{FEW_REQUESTS} or more requests of like length"
        )
    if (differs := first_token_differs(run)) is not None:
        return f"{differs}; record a run at each K under the same load, without {BY_BATCH}"
    if _told(whole):
        return None
    speed = _speed(whole.best_k, run)
    if _told(overall(model, _one_token_each(run.k), _served(run))):
        return (
            f"the acceptance of {count(run.requests, 'request')} leaves {speed} open by more than "
            f"a factor of {WIDEST:g}; record {max(FEW_REQUESTS, 4 * run.requests)} or more requests"
        )
    other = whole.best_k if whole.best_k != run.k else max(run.k // 2, 1)
    return (
        f"the step times leave {speed} open by more than a factor of {WIDEST:g}; record the same "
        f"requests with {_served_with(other)}, too, {MIN_STEPS} or more steps at each batch size"
    )


def _served(run: RunSummary) -> Served:
    """Return the K of each step as served; a step that a schedule left without a draft has K =
    0."""
    return served_of(run.k, run.cells, mixed=run.mixed or run.fallback.deliberate > 0)


def _told(whole: Prediction) -> bool:
    return whole.gain.interval is not None and whole.ran.interval is not None


def _speed(best: int, run: RunSummary) -> str:
    words = _served(run).words
    if not run.mixed and best == run.k:
        return f"the time per token with {words}"
    return f"the speed with K = {best} over that with {words}"


def _one_token_each(k: int) -> list[Array]:
    """Return tokens per round by K, shaped like `tokens_by_k`, for rounds in which nothing is
    accepted."""
    return [np.ones(1 + DRAWS)] * (k + 1)


def _served_with(k: int) -> str:
    return f"num_speculative_tokens = {k}" if k else "no speculation (--baseline)"


def same_models(a: Measured, b: Measured, *, target_only: bool = False) -> bool:
    """Whether step times of two runs can be pooled: same models, executed in the same way. With
    `target_only`, one of the two does not draft."""
    names = ["engine", "runner", "mode", "tensor_parallel", "target"]
    names += [] if target_only else ["drafter", "method"]
    return all(getattr(a.manifest, name) == getattr(b.manifest, name) for name in names)


def schedule_of(by_batch: Sequence[Prediction]) -> tuple[Range, ...]:
    """Return ranges of batch sizes with their best K; a range extends to the start of the next
    one."""
    starts: list[tuple[int, int]] = []
    for at in by_batch:
        times = [each.value for each in at.tpot_s]
        if starts and 0 < times[starts[-1][1]] <= times[at.best_k] * (1 + SAME_K_WITHIN):
            continue
        starts.append((at.batch if starts else 1, at.best_k))
    ends = [first - 1 for first, _ in starts[1:]] + [by_batch[-1].batch]
    return tuple((first, end, k) for (first, k), end in zip(starts, ends, strict=True))


def _schedule_gain(
    model: CostModel, tokens: Sequence[Array], now: Array, schedule: Sequence[Range]
) -> Estimate:
    own = {b: k for first, end, k in schedule for b in model.batches if first <= b <= end}
    return gain_of(now, mean_tpot_s(model, tokens, own))


def _tokens_per_s(model: CostModel, run: RunSummary) -> float | None:
    """Return output tokens per second; every batch size counts by its number of steps."""
    steps = [weight / batch for batch, weight in zip(model.batches, model.weights, strict=True)]
    served = _served(run)
    times = [
        sum(share * float(model.step_s(batch, k)[0]) for k, share in served.at(batch).items())
        for batch in model.batches
    ]
    busy_s = sum(n * time_s for n, time_s in zip(steps, times, strict=True))
    return run.acceptance.mean_length * sum(model.weights) / busy_s if busy_s > 0 else None


def _fixed(run: RunSummary, k: int) -> str | None:
    if (k,) == run.ks:
        return None
    return _config(run, {FIXED: k}) if k else NO_SPECULATION


def _by_batch(run: RunSummary, schedule: Sequence[Range]) -> str:
    most = max(k for _, _, k in schedule)
    return _config(run, {FIXED: most, BY_BATCH: [list(each) for each in schedule]})


def _config(run: RunSummary, options: Mapping[str, Any]) -> str:
    config = {"method": run.manifest.method, "model": run.manifest.drafter.name, **options}
    return f"--speculative-config {shlex.quote(strict_json.dumps(config))}"


def _by_context(run: RunSummary, model: CostModel) -> tuple[tuple[str, Prediction], ...]:
    """Return predictions by range of context lengths, with the same step times for all ranges: a
    step does not record its context length."""
    return tuple(
        (
            group.name,
            overall(model, tokens_by_k(group.marginal, group.marginal_interval), _served(run)),
        )
        for group in run.groups.context
        if group.rounds >= ENOUGH_ROUNDS
    )
