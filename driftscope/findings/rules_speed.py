"""Rules about speed: which K would serve faster, which steps and modes of execution lose
drafts."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.advice import (
    GAINS_AT_LEAST,
    WORTH_SAYING,
    Advice,
    by_batch,
    faster,
    to_measure,
)
from driftscope.analysis.cost import LONGER, SLOWER
from driftscope.analysis.number_words import (
    between_percent,
    count,
    listed,
    milliseconds,
    moment,
    number,
    percent,
)
from driftscope.analysis.statistics.intervals import Estimate, Interval, difference
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import ALWAYS, Case, Need, Threshold, entry
from driftscope.findings.finding import Answer, Finding, Severity, Topic, Trust, figure, judged
from driftscope.vocabulary import UndraftedReason

BOUNDED = "its step times are bounds from other K, not measured"
WORTH = Threshold(
    name="WORTH_SAYING",
    value=WORTH_SAYING,
    means="gain in tokens per second, whose 95% interval is above 0",
    source="driftscope: runs of one server differ by as much (run effect)",
)
_OTHER = Need[Case](
    words="step times of 20 or more comparable steps that drafted, of runs at two or more K",
    met=lambda case: case.advice is not None and len(case.advice.measured_k) > 1,
)
DISAGREE_ABOVE = Threshold(
    name="DISAGREE_ABOVE",
    value=0.1,
    means="difference in accepted tokens per round, over the larger",
    source="rounding changes single tokens; in a real case 0 % compared with 92 % were "
    "accepted (vllm#54997)",
)
_SOURCE = "driftscope: costs 2.5 % of the tokens per second at 2 tokens per round"
MISSING_ABOVE = Threshold(
    name="MISSING_ABOVE",
    value=0.05,
    means="share of all decode steps",
    source=_SOURCE,
)
LEFT_OUT_ABOVE = Threshold(
    name="LEFT_OUT_ABOVE",
    value=0.05,
    means="share of all decode steps",
    source=_SOURCE,
)
BOUNDARY_ABOVE = Threshold(
    name="BOUNDARY_ABOVE",
    value=0.05,
    means="share of the decode steps of those requests that lost a draft to a grammar",
    source=_SOURCE,
)
_ADVICE = {
    UndraftedReason.CONTEXT_LIMIT: "raise --max-model-len: vLLM's V1 runner drafts for no request "
    "of a batch while one of them is within K tokens of the limit",
    UndraftedReason.PREEMPTED: "give the cache more memory (--gpu-memory-utilization) or lower "
    "--max-num-seqs: requests are preempted",
    UndraftedReason.TOKEN_BUDGET: "raise --max-num-batched-tokens: the step's token budget leaves "
    "no room for drafts",
    UndraftedReason.NO_DRAFT: "look at the engine's log: the drafter returned nothing, for no "
    "known reason",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    requests: int
    mean_length: float
    interval: Interval | None


@entry(
    title="Eager and graph execution disagree",
    topic=Topic.WHERE,
    thresholds=(DISAGREE_ABOVE,),
    need=Need[Case](
        words="chains recorded in two modes, or a second run of the same models in another",
        met=lambda case: (
            len(case.run.groups.execution) > 1
            or any(
                (o.manifest.target, o.manifest.drafter)
                == (case.run.manifest.target, case.run.manifest.drafter)
                and o.manifest.mode != case.run.manifest.mode
                for o in case.others
            )
        ),
    ),
)
def modes_disagree(case: Case) -> Finding | None:
    """The same drafter accepts clearly less in one execution mode than in another, within a run or
    between two runs of the same models."""
    # Pairs to compare: groups of this run by execution, then this run with runs of the same
    # models. The flag is True for pairs within the run.
    groups = case.run.groups.execution
    sides = [
        _Side(
            name=f"in {group.name} execution",
            requests=group.requests,
            mean_length=group.mean_length,
            interval=group.mean_length_interval,
        )
        for group in groups
    ]
    within_run = [(a, b, True) for n, a in enumerate(sides) for b in sides[n + 1 :]]
    own = _of_run(case.run)
    for one, other, within in within_run + [
        (own, _of_run(other), False) for other in case.others if _twins(case, other)
    ]:
        worse, better = sorted((one, other), key=lambda side: side.mean_length)
        if worse.interval is None or better.interval is None:
            continue
        gap = difference(better.mean_length, better.interval, worse.mean_length, worse.interval)
        lost = (better.mean_length - worse.mean_length) / max(better.mean_length - 1.0, 1e-9)
        if gap.low > 0 and lost > DISAGREE_ABOVE.value:
            return _finding(case, worse, better, gap, lost, within=within)
    return None


def _finding(
    case: Case, worse: _Side, better: _Side, apart: Interval, lost: float, *, within: bool
) -> Finding:
    assumed = [] if within else ["two runs may have answered different prompts"]
    requests = min(worse.requests, better.requests)
    trust, because = judged(requests, apart, above=0.0, assumed=assumed)
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO if trust is not Trust.LOW else None,
        statement=f"rounds yield {number(worse.mean_length)} tokens {worse.name} and "
        f"{number(better.mean_length)} {better.name}",
        evidence={
            **figure("mean_length_worse", worse.mean_length, worse.interval),
            **figure("mean_length_better", better.mean_length, better.interval),
            **figure("difference", better.mean_length - worse.mean_length, apart),
            "lost": lost,
            "threshold": DISAGREE_ABOVE.value,
        },
        confidence=trust,
        because=because,
        advice=f"The drafter computes different results {worse.name}: a bug in the engine or in "
        "the model's code, not in the drafter's weights. Serve with the mode that works until it "
        "is fixed, and report it to vLLM with both runs; DRIFTSCOPE_RECORDING=shadow shows which "
        "chains differ.",
        option="--enforce-eager" if "eager" in better.name else None,
        cost_tps=case.cost_of(better.mean_length),
    )


def _of_run(run: RunSummary) -> _Side:
    return _Side(
        name=f"in mode {run.manifest.mode!r}",
        requests=run.requests,
        mean_length=run.acceptance.mean_length,
        interval=run.acceptance.mean_length_interval,
    )


def _twins(case: Case, other: RunSummary) -> bool:
    """Whether two runs have the same models and K, and differ in mode; True only for the run that
    accepts less."""
    own, its = case.run.manifest, other.manifest
    same_model = all(getattr(own, name) == getattr(its, name) for name in ("target", "drafter"))
    less = case.run.acceptance.mean_length < other.acceptance.mean_length
    same_k = not case.run.mixed and case.run.ks == other.ks
    return same_model and same_k and own.mode != its.mode and less


@entry(
    title="A smaller K serves faster",
    topic=Topic.PAYS,
    thresholds=(WORTH,),
    need=_OTHER,
)
def smaller_k(case: Case) -> Finding | None:
    """K is too high for the batch sizes and contexts that were served: the last depths cost more
    time than their accepted tokens save. Another K was measured, or is known to be within 5% of the
    fastest whatever its steps cost."""
    k = _faster_k(case)
    if k is None or not 0 < k < _drafted(case.run):
        return None
    return _other_k(case)


@entry(
    title="A larger K serves faster",
    topic=Topic.PAYS,
    thresholds=(WORTH,),
    need=_OTHER,
)
def larger_k(case: Case) -> Finding | None:
    """K is too low: a run with a larger K was measured, and its last depths save more time than
    they cost."""
    k = _faster_k(case)
    if k is None or not k > _drafted(case.run):
        return None
    return _other_k(case)


def _faster_k(case: Case) -> int | None:
    return case.advice.choice.k if case.advice is not None and case.advice.worth_it else None


def _drafted(run: RunSummary) -> float:
    """Return the tokens that the run drafted in a round."""
    return run.effective_k if run.mixed and run.effective_k is not None else run.k


def _other_k(case: Case) -> Finding:
    advice = case.advice
    assert advice is not None  # noqa: S101  the caller looks at its choice
    choice, gain = advice.choice, advice.choice.gain
    assert choice.k is not None and gain is not None  # noqa: S101
    trust, because = judged(
        case.run.requests, gain.interval, above=0.0, assumed=[] if choice.measured else [BOUNDED]
    )
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"{faster(advice)}: {times_words(advice, choice.k)}{_by_batch(advice)}",
        evidence=k_evidence(case, advice, choice.k, gain),
        confidence=trust,
        because=because,
        advice=f"Serve with num_speculative_tokens = {choice.k}.{_further(advice)}",
        assumed=advice.assumed,
        option=advice.fixed_command,
        cost_tps=case.cost_of_gain(gain.value),
    )


def _further(advice: Advice) -> str:
    measure = to_measure(advice)
    return "" if measure is None else f" It may not be the fastest: {measure}."


@entry(
    title="The best K depends on the batch size",
    topic=Topic.PAYS,
    thresholds=(
        Threshold(
            name="GAINS_AT_LEAST",
            value=GAINS_AT_LEAST,
            means="lower end of the 95% interval of the gain over the best single K",
            source="driftscope: a schedule has to be kept up to date, which smaller gains do "
            "not pay for",
        ),
    ),
    need=_OTHER,
)
def k_by_batch_size(case: Case) -> Finding | None:
    """A single K for all batch sizes serves fewer tokens per second than a separate K for some of
    them, among K that were measured there."""
    advice = case.advice
    if advice is None or not advice.schedule_worth_it:
        return None
    gain = advice.schedule_gain
    other = advice.served.words if advice.served.mixed else "the best single K"
    trust, because = judged(case.run.requests, gain.interval, above=GAINS_AT_LEAST)
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"the fastest measured K is {listed(by_batch(advice))}; together they are "
        f"{percent(gain.value)} faster than {other}{between_percent(gain.interval)}",
        evidence={
            "k": case.run.k,
            **figure("gain_over_fixed", gain.value, gain.interval),
            **{f"best_k_at_{first}": k for first, _, k in advice.schedule},
            "threshold": GAINS_AT_LEAST,
        },
        confidence=trust,
        because=because,
        advice="Set num_speculative_tokens_per_batch_size, a list of [first batch size, last, K]. "
        "vLLM ignores it with data parallelism.",
        assumed=advice.assumed,
        option=advice.schedule_command,
        cost_tps=case.cost_of_gain(gain.value),
    )


SLOWER_ABOVE = Threshold(
    name="SLOWER",
    value=SLOWER,
    means="time of a step over that of others of its kind, with the whole 95% interval",
    source="driftscope: five times what a server differs from itself by",
)
MUCH_SLOWER = Threshold(
    name="MUCH_SLOWER",
    value=1.5,
    means="the same, from which the severity is high if it lasts to the end of the run",
    source="driftscope: speculation rarely gains more",
)
LONGER_ABOVE = Threshold(
    name="LONGER_ABOVE",
    value=LONGER,
    means="mean context over that of the other rounds, from which it may explain slower steps",
    source="driftscope: attention to the context is a part of a step only",
)


@entry(
    title="Steps take longer in a part of the run",
    topic=Topic.WHERE,
    thresholds=(SLOWER_ABOVE, MUCH_SLOWER, LONGER_ABOVE),
    need=Need[Case](
        words="step times of 180 or more steps that followed one of their kind",
        met=lambda case: sum(cell.steps for cell in case.run.cells) >= 180,
    ),
)
def steps_slow_down(case: Case) -> Finding | None:
    """Steps of one replica, K and batch size take longer in a stretch of the run than in the rest
    of it: from some moment on, until one, or for a while. No setting of the drafter changes that.
    Where contexts are longer there as well, they may be the reason."""
    slow = case.run.slowdown
    if slow is None:
        return None
    longer = slow.contexts_may_explain
    begin, end = (None if at is None else moment(at) for at in (slow.start_s, slow.end_s))
    when = f"until {end}" if begin is None else f"from {begin} {f'to {end}' if end else 'on'}"
    rest = " or ".join(
        f"time_s {side} {at:.3f}"
        for side, at in (("<", slow.start_s), (">", slow.end_s))
        if at is not None
    )
    parts = ""
    if slow.draft is not None and slow.draft > SLOWER * slow.slower:
        parts = f"; the drafter's part takes {number(slow.draft)} times as long"
    if longer:
        parts += f"; contexts are {number(slow.context)} times as long there, which may be why"
    much = slow.slower >= MUCH_SLOWER.value and slow.end_s is None
    return Finding(
        severity=Severity.INFO if longer else Severity.HIGH if much else Severity.MEDIUM,
        answer=Answer.CANNOT_TELL if longer else Answer.NO,
        statement=f"{when}, steps take {number(slow.slower)} times as long as the run's other "
        f"steps of the same K and batch size ({milliseconds(slow.step_s)} each){parts}",
        evidence={
            **figure("slower", slow.slower, slow.interval),
            "slower_draft": slow.draft,
            "share_of_time": slow.share,
            "lost": slow.lost,
            "longer_context": slow.context,
            "start_s": slow.start_s,
            "threshold": SLOWER,
        },
        confidence=Trust.MEDIUM if longer else Trust.HIGH,
        because="steps of the same replica, K and batch size are compared"
        + ("; they differ in their contexts" if longer else ""),
        advice=f"Look at what else used the machine {when}: another process on the GPU or its "
        "CPU cores, lower clocks (`nvidia-smi -q -d CLOCK,PERFORMANCE`), swapping, logging. "
        "Neither the drafter nor K can repair this. The rest of the run alone: "
        f"`--where '{rest}'`.",
        cost_tps=case.cost_of_gain(1.0 / (1.0 - slow.lost) - 1.0),
    )


def times_words(advice: Advice, k: int) -> str:
    """Return the time per output token with a K, and with what ran."""
    at = advice.overall
    return (
        f"{milliseconds(at.tpot_s[k].value)} per output token with K = {k}, "
        f"{milliseconds(at.ran.value)} with {advice.served.words}"
    )


def _by_batch(advice: Advice) -> str:
    ranges = by_batch(advice)
    return f"; fastest measured K by batch size: {listed(ranges)}" if ranges else ""


def k_evidence(case: Case, advice: Advice, k: int, gain: Estimate) -> dict[str, float | int | None]:
    """Return the figures behind a K that is proposed."""
    times = advice.overall.tpot_s
    return {
        "k": case.run.k,
        "suggested_k": k,
        **figure("gain", gain.value, gain.interval),
        **figure("tpot_s_now", advice.overall.ran.value, advice.overall.ran.interval),
        **figure("tpot_s_suggested", times[k].value, times[k].interval),
        "misfit": advice.misfit,
        "threshold": WORTH_SAYING,
    }


@entry(
    title="Decode steps have no draft although no setting asked for that",
    topic=Topic.WHERE,
    thresholds=(MISSING_ABOVE,),
    need=ALWAYS,
)
def drafts_missing(case: Case) -> Finding | None:
    """Decode steps had no draft although no setting asked for K = 0: the context limit, a
    preemption, the token budget, or a drafter that returned nothing. What a grammar rejected has a
    finding of its own."""
    share, spread = case.run.groups.failed_share, case.run.groups.failed_share_interval
    if not share > MISSING_ABOVE.value:
        return None
    reasons = {
        name: n
        for name, n in case.run.fallback.by_reason.items()
        if name not in (*UndraftedReason.DELIBERATE, UndraftedReason.STRUCTURED_OUTPUT)
    }
    worst = max(reasons, key=lambda name: reasons[name])
    trust, because = judged(case.run.requests, spread, above=MISSING_ABOVE.value)
    named = listed([f"{name.replace('_', ' ')} {n:,}" for name, n in reasons.items()])
    return Finding(
        severity=Severity.HIGH if share > 0.5 else Severity.MEDIUM,
        statement=f"{percent(share)} of the decode steps had no draft, and no setting asked for "
        f"that ({named})",
        evidence={
            **figure("failed_share", share, spread),
            "deliberate_share": _deliberate(case),
            **{f"steps_{name}": n for name, n in reasons.items()},
            "threshold": MISSING_ABOVE.value,
        },
        confidence=trust,
        because=because,
        advice=f"Most common cause: {worst.replace('_', ' ')}; "
        f"{_ADVICE.get(worst, 'see the reasons in the report')}.",
        cost_tps=_cost(case, share),
    )


@entry(
    title="Drafts are left out on purpose",
    topic=Topic.WHERE,
    thresholds=(LEFT_OUT_ABOVE,),
    need=ALWAYS,
)
def drafts_left_out(case: Case) -> Finding | None:
    """A setting asked for K = 0, by batch size for example. That is a choice, and is counted
    separately from failures to draft."""
    share = _deliberate(case)
    if not share > LEFT_OUT_ABOVE.value:
        return None
    return Finding(
        severity=Severity.INFO,
        statement=f"{percent(share)} of the decode steps had no draft because a setting asked for "
        "K = 0",
        evidence={
            "deliberate_share": share,
            "failed_share": case.run.groups.failed_share,
            "threshold": LEFT_OUT_ABOVE.value,
        },
        confidence=Trust.MEDIUM if case.run.clusters >= FEW_REQUESTS else Trust.LOW,
        because="recorded in the engine's schedule",
        advice="Nothing to fix. `driftscope advise` shows whether "
        "num_speculative_tokens_per_batch_size leaves drafts out at the right batch sizes.",
    )


@entry(
    title="Tool calls or structured output lose drafts",
    topic=Topic.WHERE,
    thresholds=(BOUNDARY_ABOVE,),
    need=ALWAYS,
)
def structured_output_loses_drafts(case: Case) -> Finding | None:
    """A grammar rejected whole drafts, as happens where tool calls or structured output begin."""
    groups = case.run.groups
    share, spread = groups.boundary_share, groups.boundary_share_interval
    if not share > BOUNDARY_ABOVE.value:
        return None
    lost = case.run.fallback.by_reason[UndraftedReason.STRUCTURED_OUTPUT]
    trust, because = judged(case.run.requests, spread, above=BOUNDARY_ABOVE.value)
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO if trust is not Trust.LOW else None,
        statement=f"a grammar rejected {count(lost, 'draft')}: {percent(share)} of the decode "
        f"steps of the affected requests{_compared_acceptance(case)}",
        evidence={
            **figure("boundary_share", share, spread),
            "lost_drafts": lost,
            "threshold": BOUNDARY_ABOVE.value,
        },
        confidence=trust,
        because=because,
        advice="At the grammar's boundaries the drafter drafts tokens that the grammar forbids. "
        "Keep the text around tool calls as in the drafter's training, train the drafter on tool "
        "calls, or serve such requests without speculation if they accept little. A grammar that "
        "allows arbitrary white space loses more drafts.",
        cost_tps=_cost(case, lost / case.run.fallback.steps),
    )


def _compared_acceptance(case: Case) -> str:
    """Return in words the acceptance of the rounds of these requests compared with the others."""
    groups = case.run.groups.structured
    if len(groups) < 2:
        return ""
    own, other = groups
    spans = own.mean_length_interval, other.mean_length_interval
    surely = (
        spans[0] is not None
        and spans[1] is not None
        and difference(own.mean_length, spans[0], other.mean_length, spans[1]).excludes_zero()
    )
    return (
        f"; their rounds yield {number(own.mean_length)} tokens, the others' "
        f"{number(other.mean_length)}{'' if surely else ' (no difference shown)'}"
    )


def _deliberate(case: Case) -> float:
    fallback = case.run.fallback
    return fallback.deliberate / fallback.steps if fallback.steps else 0.0


def _cost(case: Case, share: float) -> float | None:
    """Return the gain in tokens per second if these steps yielded a round's tokens instead of one,
    in the time of a step that drafts."""
    gained = share * (case.run.acceptance.mean_length - 1.0)
    return case.cost_of(case.run.acceptance.mean_length + gained)
