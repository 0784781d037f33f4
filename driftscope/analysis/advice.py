"""Advice on the best K, as the option that vLLM takes, with its expected gain, and in sentences."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from driftscope.analysis.cost import MIN_STEPS, CostModel, Span, StepCell, evened, fit
from driftscope.analysis.number_words import count, listed, percent
from driftscope.analysis.statistics.intervals import Estimate, Interval
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import RunSummary, first_token_differs
from driftscope.analysis.time_per_token import (
    ONE_TOKEN,
    WIDEST,
    WORTH,
    Policy,
    Prediction,
    RecordedK,
    RoundLength,
    ServedK,
    Times,
    estimate,
    gain_of,
    length_at,
    length_warnings,
    policies,
    possible_growth,
    prediction,
    round_lengths,
    served_of,
    speed_ratio,
    summed,
    times_at,
    times_over,
    tpot_at,
    tpot_of,
)
from driftscope.boundary.text import dumps
from driftscope.trace.manifest import Manifest, Model

FIXED, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
"""vLLM's option names (vllm/config/speculative.py, 0.27 to 0.32). BY_BATCH is a list of [first
batch size, last, K], both ends included. The first range starts at 1, and a batch size that no
range covers takes the K of the range before it."""
NO_SPECULATION = "no --speculative-config"
Range: TypeAlias = tuple[int, int, int]
"""First batch size, last, and K."""


def served_option(run: RunSummary) -> str | None:
    """Return the option with which a run of one K was served; None for a run of several K."""
    return None if run.mixed else _config(run, {FIXED: run.k})


def pays_command(*runs: RunSummary, other_k: int | None = None) -> str:
    """Return the command that serves a target without speculation and with the drafters of `runs`
    in turn, and compares them; `other_k`: each with that K as well."""
    manifest = runs[0].manifest
    ks = dict.fromkeys((runs[0].k, other_k))
    options = [f"-k {','.join(map(str, ks))}"] if other_k else []
    for name, size in (
        ("--tensor-parallel-size", manifest.tensor_parallel),
        ("--pipeline-parallel-size", manifest.pipeline_parallel),
    ):
        options += [f"{name} {size}"] if size > 1 else []
    configs = [_config(run, {FIXED: run.k}) for run in runs]
    return pays_words(manifest.target.name, *options, *dict.fromkeys(configs))


def pays_words(server: str, *options: str) -> str:
    """Return the command that measures whether speculation pays for a model or a URL."""
    return " ".join(["driftscope pays", shlex.quote(server), *options])


def _config(run: RunSummary, options: Mapping[str, Any]) -> str:
    drafter = run.manifest.drafter
    model = {} if drafter is None else {"model": drafter.name}
    return speculative_config({"method": run.manifest.method, **model, **options})


def speculative_config(config: Mapping[str, Any]) -> str:
    """Return vLLM's option for a drafter, quoted for a shell."""
    return f"--speculative-config {shlex.quote(dumps(config))}"


SAME_K_WITHIN = 0.01
"""Largest relative cost at which a batch size keeps its smaller neighbour's K: a schedule of many
ranges for gains below any measurement helps nobody."""
GAINS_AT_LEAST = 0.02
"""Lower end of the gain of a schedule from which it is suggested: it has to be kept up to date when
the server changes. This is driftscope's own bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KByBatchSize:
    """Fastest measured K by range of batch sizes."""

    ranges: tuple[Range, ...]
    """A range extends to the start of the next one; () if no K was measured."""
    gain: Estimate
    """Speed over what it is compared with, minus 1."""


def schedule_of(
    model: CostModel, lengths: Sequence[RoundLength], served: ServedK, single: int | None
) -> KByBatchSize:
    """Return the schedule; it is compared with the K `single`, or with K as served in a run of
    several K or without a single one.

    Batch sizes of which both have the same K cancel out: only the others add to the interval.
    """
    single = None if served.mixed else single
    starts: list[tuple[int, int]] = []
    now, then = [], []
    for batch, weight in model.mix:
        times = {
            k: tpot_at(model, length, batch, k)
            for k, length in enumerate(lengths)
            if model.cell(batch, k)
        }
        best = min(times, key=lambda k: times[k].value)
        before = starts[-1][1] if starts else best  # kept if it is as fast
        if before in times and times[before].value <= times[best].value * (1 + SAME_K_WITHIN):
            best = before
        if not starts or starts[-1][1] != best:
            starts.append((batch if starts else 1, best))
        other = (
            tpot_of(model, lengths, served, batch)
            if single is None
            else tpot_at(model, lengths[single], batch, single)
        )
        same = (list(served.at(batch)) if single is None else [single]) == [best]
        now.append((weight, _exact(other) if same else other))
        then.append((weight, _exact(other) if same else times[best]))
    ends = [first - 1 for first, _ in starts[1:]] + [model.batches[-1]]
    return KByBatchSize(
        ranges=tuple((first, end, k) for (first, k), end in zip(starts, ends, strict=True)),
        gain=gain_of(summed(now), summed(then)),
    )


def _exact(span: Span) -> Span:
    return Span(value=span.value, low=span.value, high=span.value)


WORTH_SAYING = 0.05
"""Gain in speed below which no other K is suggested, and largest regret of a K that is kept: the
speed that could still be won with another K. This is driftscope's own bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """K to measure next."""

    k: int
    guess: float | None
    """Guessed gain over the K that ran; None for a K above all that ran, of which nothing is
    known but a bound, or if the guess is no gain of more than WORTH."""
    most: float | None
    """Largest possible gain over the K that ran; None if it has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Conclusion from the step times about K."""

    k: int | None
    """K to serve: the fastest that was measured, or one whose regret is bounded to WORTH_SAYING.
    None if no K was."""
    measured: bool
    """Whether that K was measured."""
    regret: float | None
    """Largest possible gain of any other K over it; None if it has no bound."""
    gain: Estimate | None
    """Speed with it over that of the run, minus 1; None without a K."""
    next: Next | None
    """K to measure next; None if the choice is settled: both neighbours are measured and slower,
    if the time has one minimum over K, or the regret is at most WORTH_SAYING."""


def choose(
    times: Times, order: Times, measured: Collection[int], *, ran: int | None, growth: float
) -> Choice:
    """Return the choice; `times` are over the batch sizes as served, and `order` are those times
    with runs evened out, which decide which K is the faster one.

    `measured` are the K with measured times, `ran` is the K of the run (None: several), and
    `growth` is the largest relative gain in tokens per round of one more depth than the largest K.
    """
    by_k = [
        replace(span, value=even.value) for span, even in zip(times.by_k, order.by_k, strict=True)
    ]
    fastest = min(measured, key=lambda k: by_k[k].value, default=None)
    bounded = [k for k in range(len(by_k)) if regret_of(k, by_k, growth) <= WORTH_SAYING]
    if fastest is None and not bounded:
        guess = min(range(len(by_k)), key=lambda k: by_k[k].value)
        step = None if guess == ran else _next(guess, times, ran, None, growth)
        return Choice(k=None, measured=False, regret=None, gain=None, next=step)
    k = min(bounded, key=lambda k: by_k[k].value) if bounded else fastest
    assert k is not None  # noqa: S101  one of the two is not empty
    regret = regret_of(k, by_k, growth)
    # The neighbours that may be faster, for all that is known.
    near = [k - 1] if k else []
    near += [k + 1] if k + 1 < len(by_k) or growth > WORTH_SAYING else []
    slower = {j for j in near if j < len(by_k) and by_k[j].low >= by_k[k].value}
    near = [j for j in near if j not in measured and j not in slower]
    step = None
    if regret > WORTH_SAYING and near:
        # The guessed fastest K if it was not measured, else the better unmeasured neighbour.
        guess = min(range(len(by_k)), key=lambda j: by_k[j].value)
        if guess in measured:
            guess = min(near, key=lambda j: by_k[j if j < len(by_k) else k].value)
        step = _next(guess, replace(times, by_k=tuple(by_k)), ran, k, growth)
    return Choice(
        k=k,
        measured=k in measured,
        regret=regret if math.isfinite(regret) else None,
        gain=gain_of(times.ran, times.by_k[k]),
        next=step,
    )


def regret_of(k: int, by_k: Sequence[Span], growth: float) -> float:
    """Return the largest possible gain over K = `k`; infinite without a bound."""
    others = [span.low for j, span in enumerate(by_k) if j != k]
    least = min(others, default=math.inf)
    beyond = growth if k == len(by_k) - 1 else 0.0
    if not least > 0:
        return math.inf
    return max(by_k[k].high / least - 1.0, beyond)


def _next(k: int, times: Times, ran: int | None, best: int | None, growth: float) -> Next:
    by_k = times.by_k
    if k < len(by_k):
        ratio = speed_ratio(times.ran, by_k[k])
        guess = ratio.value - 1.0
        return Next(k=k, guess=guess if guess > WORTH else None, most=_finite(ratio.high - 1.0))
    if best is None or best == ran:
        return Next(k=k, guess=None, most=growth)
    over_best = speed_ratio(times.ran, by_k[best]).high
    return Next(k=k, guess=None, most=_finite(over_best * (1 + growth) - 1.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
    served: ServedK
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
    policies: tuple[Policy, ...] = ()
    """Predictions of what each confidence threshold would have served; () if the run drafted
    several K, or if drafts were trimmed already."""
    held_out: float | None = None
    """Relative error with which the step times of half of the run predict those of the other half,
    mean over K and batch sizes by their steps."""
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
    def tells_nothing(self) -> bool:
        """Whether no time per token is known, at any K and batch size: the machine was too busy."""
        known = (time.interval for at in (self.overall, *self.by_batch) for time in at.tpot_s)
        return not self.useless and not any(known)

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
    same_model: list[Measured] = [other for other in others if same_models(run, other)]
    if plain is not None and same_models(run, plain, target_only=True):
        same_model.append(plain)
    model = fit([run.cells, *(run.cells for run in same_model)])
    if model is None:
        return None
    if _length_at_most(run) < DEAD_LENGTH:
        return _without(run, model)
    drafting = [run for run in same_model if isinstance(run, RunSummary)]
    return _advice(run, drafting, model)


def _advice(run: RunSummary, others: Sequence[RunSummary], model: CostModel) -> Advice:
    lengths, served = round_lengths(run, others), _served(run)
    whole, relative = _times_and_comparison(model, lengths, served)
    largest = max([run, *(other for other in others if not other.mixed)], key=lambda run: run.k)
    choice = choose(
        relative,
        times_over(evened(model), lengths, served),
        [k for k in model.measured_k if k < len(lengths)],
        ran=None if served.mixed else run.k,
        growth=possible_growth(largest),
    )
    schedule = schedule_of(_within_one(model), lengths, served, choice.k)
    overall = prediction(0, 1.0, whole, relative)
    known = [(cell.held_out, cell.steps) for cell in run.cells if cell.held_out is not None]
    steps = sum(number for _, number in known)
    fixed = by_size = None
    if choice.k is not None and (choice.k,) != run.ks:
        fixed = _config(run, {FIXED: choice.k}) if choice.k else NO_SPECULATION
    if len(schedule.ranges) > 1:  # K = 0 alone needs no schedule
        most = max(k for _, _, k in schedule.ranges)
        by_size = _config(run, {FIXED: most, BY_BATCH: [list(part) for part in schedule.ranges]})
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
        gains=tuple(gain_of(relative.ran, span) for span in relative.by_k),
        choice=choice,
        schedule=schedule.ranges,
        schedule_gain=schedule.gain,
        by_context=_by_context(run, model),
        tokens_per_s=_tokens_per_s(model, run),
        fixed_command=fixed,
        schedule_command=by_size,
        measure_command=None if choice.next is None else pays_command(run, other_k=choice.next.k),
        policies=_policies(run, model, lengths),
        held_out=sum(off * number for off, number in known) / steps if steps else None,
        doubt=_doubt(run, model, overall),
        least_gain=_least_gain(run),
    )


def _policies(
    run: RunSummary, model: CostModel, lengths: Sequence[RoundLength]
) -> tuple[Policy, ...]:
    """Return the policies tried on the run; () if its rounds were trimmed, because what they would
    have accepted beyond is not known, or if it was served with several K."""
    speed = _tokens_per_s(model, run)
    if run.mixed or run.fallback.deliberate or run.fallback.cut_share >= TRIMMED or not speed:
        return ()
    return policies(
        _within_one(model),
        RecordedK(
            k=run.k,
            length=lengths[run.k],
            trimmed=run.confidence.calibration.trimmed,
            tokens_per_s=speed,
        ),
    )


TRIMMED = 0.01
"""Share of the drafts that were cut before verification from which a run counts as trimmed."""


def _within_one(model: CostModel) -> CostModel:
    """Return the model with which speeds are compared: within one run, runs do not differ."""
    return model if model.runs > 1 else replace(model, between=0.0)


def _times_and_comparison(
    model: CostModel, lengths: Sequence[RoundLength], served: ServedK
) -> tuple[Times, Times]:
    """Return the times over all batch sizes, and those with which speeds are compared."""
    return times_over(model, lengths, served), times_over(_within_one(model), lengths, served)


def _by_batch(
    model: CostModel, lengths: Sequence[RoundLength], served: ServedK
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


def _worth(gain: Estimate) -> bool:
    return gain.value >= WORTH_SAYING and gain.surely_above(0.0)


def _length_at_most(run: RunSummary) -> float:
    """Return the upper end of the acceptance length, also if no round accepted anything."""
    if run.acceptance.mean_length <= 1.0:
        return 1.0 + RULE_OF_THREE / run.rounds
    spread = run.acceptance.mean_length_interval
    return math.inf if spread is None else spread.high


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
    whole, relative = _times_and_comparison(model, lengths, served)
    overall = _at_none(prediction(0, 1.0, whole, relative), least_gain)
    return Advice(
        run=run.label,
        ran_k=run.k,
        served=served,
        measured_k=model.measured_k,
        assumed=model.assumed,
        misfit=model.misfit,
        run_effect=model.between,
        by_batch=tuple(_at_none(at_batch, None) for at_batch in _by_batch(model, lengths, served)),
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
        spread = spread and Interval.between(max(spread.low, least), max(spread.high, value))
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
    sure = [replace(length, error=0.0) for length in round_lengths(run)]
    ran = [(weight, tpot_of(model, sure, served, batch)) for batch, weight in model.mix]
    if all(estimate(span).interval is not None for _, span in ran):
        return (
            f"the acceptance of {count(run.requests, 'request')} leaves {speed} uncertain by more "
            f"than a factor of {WIDEST:g}; record {max(FEW_REQUESTS, 4 * run.requests)} or more "
            "requests"
        )
    return (
        f"the step times leave {speed} uncertain by more than a factor of {WIDEST:g}; record the "
        f"same requests on a quieter machine, with {MIN_STEPS} or more steps at each batch size"
    )


def _served(run: RunSummary) -> ServedK:
    """Return the K of each step as served; a step that a schedule left without a draft has K =
    0."""
    return served_of(run.k, run.cells, mixed=run.mixed or run.fallback.deliberate > 0)


def same_models(a: Measured, b: Measured, *, target_only: bool = False) -> bool:
    """Whether step times of two runs can be pooled: same models, executed in the same way. With
    `target_only`, one of the two does not draft."""
    return left_out_because(a, b, target_only=target_only) is None


_SAME = {
    "target": "target",
    "drafter": "drafter",
    "engine": "engine",
    "runner": "runner",
    "mode": "execution mode",
    "tensor_parallel": "tensor parallelism",
    "method": "method",
}
"""Fields of the manifest in which runs whose step times are pooled agree, in words."""


def left_out_because(a: Measured, b: Measured, *, target_only: bool = False) -> str | None:
    """Return why the step times of `b` cannot be pooled with those of `a`; None if they can.

    `target_only`: one of the two does not draft.
    """
    things = []
    for field, words in _SAME.items():
        mine, theirs = getattr(a.manifest, field), getattr(b.manifest, field)
        if mine == theirs or (target_only and field in ("drafter", "method")):
            continue
        names = [model.name if isinstance(model, Model) else model for model in (mine, theirs)]
        same_name = names[0] == names[1]
        things.append(words if same_name else f"{words} ({names[1]} instead of {names[0]})")
    return f"left out, it has another {listed(things)}" if things else None


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
            found.append(
                (group.name, prediction(0, 1.0, *_times_and_comparison(model, lengths, served)))
            )
    return tuple(found)


def answer(advice: Advice) -> str:
    """Return one clause: the K to serve with its gain, the K to measure, or why neither is
    known."""
    if advice.doubt is not None:
        return f"it is not known which K is fastest: {advice.doubt}"
    if advice.useless:
        return "K = 0 is the fastest: next to nothing is accepted, whatever K is"
    if advice.worth_it:
        return faster(advice)
    measure = to_measure(advice)
    return keep_words(advice) if measure is None else measure


def faster(advice: Advice) -> str:
    """Return how much faster the K to serve is."""
    choice = advice.choice
    how = "was measured" if choice.measured else "is, whatever its steps cost,"
    gain = "faster" if choice.gain is None else f"{percent(choice.gain.value)} faster"
    return f"K = {choice.k} {how} {gain} than {advice.served.words}{ends(choice.gain)}"


def keep_words(advice: Advice) -> str:
    """Return that what ran should stay, and why."""
    choice, keep = advice.choice, f"keep {advice.served.words}"
    if choice.k is None or (not advice.served.mixed and choice.k == advice.ran_k):
        regret = choice.regret
        if regret is not None and regret <= WORTH_SAYING:
            return f"{keep}: no other K is more than {percent(max(regret, 0.0))} faster"
        slower = ": its neighbours were measured and are slower"
        return f"{keep}{slower if choice.k is not None else ''}"
    gain = choice.gain
    if gain is None or gain.interval is None:
        return keep
    how = f"K = {choice.k} {'was measured' if choice.measured else 'is guessed to be'}"
    if gain.surely_above(0.0):
        return f"{keep}: {how} {percent(gain.value)} faster, which is little"
    return (
        f"{keep}: {how} {signed(gain.value)} faster{ends(gain)}, which is no "
        "more than runs of one server may differ; run both again to tell"
    )


def to_measure(advice: Advice) -> str | None:
    """Return which K to measure next and what it may gain at most; None if none needs to be."""
    following = advice.choice.next
    if following is None or advice.doubt is not None or advice.useless:
        return None
    k, most = following.k, following.most
    bound = "" if most is None else f" (at most {percent(max(most, 0.0))})"
    if following.guess is not None and most is not None:
        gain = f"K = {k} may be about {percent(following.guess)} faster{bound}"
    else:
        gain = f"whether K = {k} is faster is not known{bound}"
    ran = "" if advice.served.mixed else " ran"
    return f"{advice.served.words}{ran}; {gain}; measure K = {k}"


def by_batch(advice: Advice) -> list[str]:
    """Return the measured K by range of batch sizes; [] if they are one K."""
    if len(advice.schedule) < 2:
        return []
    return [
        f"{k} for batches of {first}" + (f" to {last}" if last > first else "")
        for first, last, k in advice.schedule
    ]


def ends(gain: Estimate | None) -> str:
    """Return the interval of a gain in brackets, with a space before; "" without one."""
    if gain is None or gain.interval is None:
        return ""
    return f" (95% interval {signed(gain.interval.low)} to {signed(gain.interval.high)})"


def signed(value: float) -> str:
    """Return a gain, which may be a loss, in percent."""
    return f"{'−' if value < 0 else ''}{percent(abs(value))}"
