"""Advice on the best K, as the option that vLLM takes, with its expected gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from driftscope.analysis.cost.choice import WORTH_SAYING, Choice, choose
from driftscope.analysis.cost.model import CostModel, evened, fit
from driftscope.analysis.cost.predict import (
    WIDEST,
    Estimate,
    Prediction,
    Times,
    estimate,
    gain_of,
    prediction,
    times_at,
    times_over,
    tpot_of,
)
from driftscope.analysis.cost.round_lengths import (
    ONE_TOKEN,
    RoundLength,
    length_at,
    length_warnings,
    possible_growth,
    round_lengths,
)
from driftscope.analysis.cost.schedule import GAINS_AT_LEAST, Schedule, schedule_of
from driftscope.analysis.cost.served import Served, served_of
from driftscope.analysis.cost.vllm_options import (
    BY_BATCH,
    NO_SPECULATION,
    Range,
    fixed_option,
    schedule_option,
    search_command,
)
from driftscope.analysis.figures.steps import MIN_STEPS, StepCell
from driftscope.analysis.number_words import count
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.acceptance_by_k import first_token_differs
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.trace.format.manifest import Manifest

ENOUGH_ROUNDS = 200
"""Smallest number of rounds in a range of context lengths for which a separate K is reported: the
standard error of a marginal rate is then below 0.036."""
_POOLED = (
    "acceptance by depth is taken from all rounds that drafted the depth, whatever decided their "
    "K; it is assumed to be the same at every batch size"
)
DEAD_LENGTH = 1.05
"""Acceptance length below which a drafter is useless at every K, compared with the upper end of its
95% interval: one accepted token in twenty rounds does not pay for drafting. The rule
`nothing_accepted` has the same bound for the first depth."""
RULE_OF_THREE = 3.0
"""Upper end of the 95% interval of a rate that was 0 in n cases, times n (Hanley and Lippman-Hand
1983)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice for one run from its own step times, and from those of runs at other K."""

    run: str
    ran_k: int
    """Length of the longest chain."""
    served: Served
    """K of each step as served."""
    measured_k: tuple[int, ...]
    """K whose step times were measured."""
    assumed: tuple[str, ...]
    """Quantities that the runs do not measure, with what bounds or replaces each."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt that one acceptance length holds."""
    misfit: float
    """Root mean square of the relative differences of measured verification times from a
    non-decreasing curve in tokens."""
    run_effect: float
    """Relative standard deviation of step times from one run to the next that intervals include."""
    by_batch: tuple[Prediction, ...]
    overall: Prediction
    """Prediction over the batch sizes as they were served."""
    gains: tuple[Estimate, ...]
    """Speed with K = 0, 1, ... over that with K as served, minus 1."""
    choice: Choice
    """K to serve, and K to measure next."""
    schedule: tuple[Range, ...]
    """Fastest measured K by range of batch sizes."""
    schedule_gain: Estimate
    """Speed of the schedule over the best single K, minus 1; in a run of several K, over K as
    served."""
    by_context: tuple[tuple[str, Prediction], ...]
    """Predictions like `overall`, with the acceptance of rounds in each range of context
    lengths."""
    tokens_per_s: float | None
    """Output tokens per second of the busy engine with the K that ran, all requests together; None
    if a step takes no time."""
    doubt: str | None = None
    """Reason why the fastest K is not known, and what to record; None if it is known or if it is
    known which K to measure next."""
    useless: bool = False
    """Whether next to nothing is accepted, see DEAD_LENGTH: then K = 0 is the fastest, whatever a
    step costs."""
    least_gain: float | None = None
    """Lower bound of the speed with K = 0 over that with the K that ran, minus 1. It assumes that
    steps without a draft only save the drafter's time and yield one token: measured within the same
    steps, it needs no model. None if it is not above 0, or if the steps of the run were not
    measured."""
    measure_command: str | None = None
    """Command that measures the next K, with the model of the run; add the server's other options
    and the prompts. None if none needs to be measured."""
    fixed_command: str | None
    """Option for the K to serve, to paste; None if K should stay, or is not known."""
    schedule_command: str | None
    """Option for a K by batch size, to paste; None if one K is best for all batch sizes."""

    @property
    def command(self) -> str | None:
        """Option to set; None if nothing should change, or nothing is known to be faster."""
        if self.useless:
            return NO_SPECULATION
        if self.schedule_worth_it:
            return self.schedule_command
        if self.worth_it:
            return self.fixed_command
        return NO_SPECULATION if self.surely_slower else None

    @property
    def worth_it(self) -> bool:
        """Whether the chosen K is surely faster than what ran, by enough to report it."""
        return self.useless or (
            self.doubt is None
            and self.fixed_command is not None
            and self.choice.gain is not None
            and _worth(self.choice.gain)
        )

    @property
    def none_is_faster(self) -> bool:
        """Whether no speculation surely serves faster than what ran."""
        if self.useless or self.surely_slower:
            return self.least_gain is not None
        return self.doubt is None and _worth(self.gains[0])

    @property
    def surely_slower(self) -> bool:
        """Whether K = 0 surely gains enough over the K that ran, although no K is known to be the
        fastest."""
        return not self.worth_it and (self.least_gain or 0.0) >= WORTH_SAYING

    @property
    def schedule_worth_it(self) -> bool:
        """Whether a K by batch size surely gains enough over the best single K to report it."""
        several = self.schedule_command is not None
        return several and self.doubt is None and self.schedule_gain.surely_above(GAINS_AT_LEAST)


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
    speculation, add measured times.

    Returns None without enough measured steps.
    """
    alike: list[Measured] = [each for each in others if same_models(run, each)]
    if plain is not None and same_models(run, plain, target_only=True):
        alike.append(plain)
    model = fit([run.cells, *(each.cells for each in alike)])
    if model is None:
        return None
    if _useless(run):
        return _without(run, model)
    drafting = [each for each in alike if isinstance(each, RunSummary)]
    return _advice(run, drafting, model)


def _advice(run: RunSummary, others: Sequence[RunSummary], model: CostModel) -> Advice:
    lengths, served = round_lengths(run, others), _served(run)
    whole, relative = _both(model, lengths, served)
    largest = max([run, *(each for each in others if not each.mixed)], key=lambda each: each.k)
    choice = choose(
        relative,
        times_over(evened(model), lengths, served),
        [k for k in model.measured_k if k < len(lengths)],
        ran=None if served.mixed else run.k,
        growth=possible_growth(largest),
    )
    schedule = schedule_of(_within_one(model), lengths, served, choice.k)
    overall = prediction(0, 1.0, whole, relative)
    return Advice(
        run=run.label,
        ran_k=run.k,
        served=served,
        measured_k=model.measured_k,
        assumed=(*model.assumed, *((_POOLED,) if served.mixed else ())),
        warnings=length_warnings(run, others),
        misfit=model.misfit,
        run_effect=model.between,
        by_batch=_by_batch(model, lengths, served),
        overall=overall,
        gains=tuple(gain_of(relative.ran, each) for each in relative.by_k),
        choice=choice,
        schedule=schedule.ranges,
        schedule_gain=schedule.gain,
        by_context=_by_context(run, model),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=None if choice.k is None else fixed_option(run, choice.k),
        schedule_command=_several(run, schedule),
        measure_command=None if choice.next is None else search_command(run),
        doubt=_doubt(run, model, overall),
        least_gain=_least_gain(run),
    )


def _within_one(model: CostModel) -> CostModel:
    """Return the model with which speeds are compared: within one run, runs do not differ."""
    return model if model.runs > 1 else replace(model, between=0.0)


def _both(model: CostModel, lengths: Sequence[RoundLength], served: Served) -> tuple[Times, Times]:
    """Return the times over all batch sizes, and those with which speeds are compared."""
    return times_over(model, lengths, served), times_over(_within_one(model), lengths, served)


def _by_batch(
    model: CostModel, lengths: Sequence[RoundLength], served: Served
) -> tuple[Prediction, ...]:
    within = _within_one(model)
    return tuple(
        prediction(
            batch,
            weight,
            times_at(model, lengths, served, batch),
            times_at(within, lengths, served, batch),
        )
        for batch, weight in model.mix
    )


def _several(run: RunSummary, schedule: Schedule) -> str | None:
    """Return the option for a schedule of several K; none for K = 0 alone."""
    return schedule_option(run, schedule.ranges) if len(schedule.ranges) > 1 else None


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
    lengths, least_gain, served = [ONE_TOKEN] * (run.k + 1), _least_gain(run), _served(run)
    whole, relative = _both(model, lengths, served)
    overall = _at_none(prediction(0, 1.0, whole, relative), least_gain)
    return Advice(
        run=run.label,
        ran_k=run.k,
        served=served,
        measured_k=model.measured_k,
        assumed=model.assumed,
        misfit=model.misfit,
        run_effect=model.between,
        by_batch=tuple(_at_none(each, None) for each in _by_batch(model, lengths, served)),
        overall=overall,
        gains=(overall.gain,),
        choice=Choice(
            k=0, measured=0 in model.measured_k, regret=None, gain=overall.gain, next=None
        ),
        schedule=((1, model.batches[-1], 0),),
        schedule_gain=Estimate(value=0.0, interval=Interval(low=0.0, high=0.0)),
        by_context=(),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=NO_SPECULATION,
        schedule_command=None,
        useless=True,
        least_gain=least_gain,
    )


def _at_none(prediction: Prediction, least: float | None) -> Prediction:
    """Return the prediction with K = 0 as the best K, and with at least the gain `least`."""
    value = prediction.ran.value / prediction.tpot_s[0].value - 1.0
    spread = prediction.gain.interval if prediction.best_k == 0 else None
    if least is not None:
        value = value if value > least else least
        spread = spread and Interval.of(max(spread.low, least), max(spread.high, value))
    return replace(prediction, best_k=0, gain=Estimate(value=value, interval=spread))


def _doubt(run: RunSummary, model: CostModel, whole: Prediction) -> str | None:
    """Return why the best K is not known, and what to record; None if it is known."""
    spread = run.acceptance.marginal_interval
    if spread is None or not all(spread):
        if run.independence is not None and run.independence.even:
            return (
                f"the acceptance of {count(run.clusters, run.noun)} leaves its rates without a 95% "
                f"interval; record {FEW_REQUESTS} or more {run.noun}s"
            )
        return (
            "one request dominates the acceptance, so its rates have no 95% interval; record "
            f"{FEW_REQUESTS} or more requests of similar length"
        )
    if (differs := first_token_differs(run)) is not None:
        return f"{differs}; record a run at each K under the same load, without {BY_BATCH}"
    if whole.ran.interval is not None:
        return None
    served = _served(run)
    speed = f"the time per token with {served.words}"
    sure = [replace(each, error=0.0) for each in round_lengths(run)]
    ran = [(weight, tpot_of(model, sure, served, batch)) for batch, weight in model.mix]
    if all(estimate(each).interval is not None for _, each in ran):
        return (
            f"the acceptance of {count(run.requests, 'request')} leaves {speed} uncertain by more "
            f"than a factor of {WIDEST:g}; record {max(FEW_REQUESTS, 4 * run.requests)} or more "
            "requests"
        )
    return (
        f"the step times leave {speed} uncertain by more than a factor of {WIDEST:g}; record the "
        f"same requests on a quieter machine, with {MIN_STEPS} or more steps at each batch size"
    )


def _served(run: RunSummary) -> Served:
    """Return the K of each step as served; a step that a schedule left without a draft has K =
    0."""
    return served_of(run.k, run.cells, mixed=run.mixed or run.fallback.deliberate > 0)


def same_models(a: Measured, b: Measured, *, target_only: bool = False) -> bool:
    """Whether step times of two runs can be pooled: same models, executed in the same way. With
    `target_only`, one of the two does not draft."""
    names = ["engine", "runner", "mode", "tensor_parallel", "target"]
    names += [] if target_only else ["drafter", "method"]
    return all(getattr(a.manifest, name) == getattr(b.manifest, name) for name in names)


def _tokens_per_s(model: CostModel, run: RunSummary) -> float | None:
    """Return output tokens per second; every batch size counts by its number of steps."""
    served = _served(run)
    busy_s = sum(
        weight / batch * share * model.step(batch, k).value
        for batch, weight in model.mix
        for k, share in served.at(batch).items()
    )
    return run.acceptance.mean_length * sum(model.weights) / busy_s if busy_s > 0 else None


def _by_context(run: RunSummary, model: CostModel) -> tuple[tuple[str, Prediction], ...]:
    """Return predictions by range of context lengths, with the same step times for all ranges: a
    step does not record its context length."""
    served, found = _served(run), []
    for group in run.groups.context:
        if group.rounds >= ENOUGH_ROUNDS:
            lengths = [
                length_at(k, group.marginal, group.marginal_interval)
                for k in range(len(group.marginal) + 1)
            ]
            found.append((group.name, prediction(0, 1.0, *_both(model, lengths, served))))
    return tuple(found)
