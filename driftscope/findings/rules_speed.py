"""Rules about speed: whether speculation pays, which K would serve faster, which steps and modes of
execution lose drafts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from driftscope.analysis.advice import (
    GAINS_AT_LEAST,
    NO_SPECULATION,
    WORTH_SAYING,
    Advice,
    by_batch,
    faster,
    pays_command,
    to_measure,
)
from driftscope.analysis.comparability import Claim
from driftscope.analysis.number_words import (
    between_percent,
    count,
    listed,
    milliseconds,
    number,
    percent,
)
from driftscope.analysis.speed import (
    AT_ONCE,
    CLOCKS_APART,
    MARGIN,
    RUN_EFFECT,
    TPOT,
    SpeedAtLoad,
    is_faster,
    speed_by_means,
)
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import BaselineRun, RunSummary
from driftscope.analysis.time_per_token import Estimate
from driftscope.findings.case import ALWAYS, Case, Need, ReplayCase, Threshold, entry, question
from driftscope.findings.finding import (
    Answer,
    Finding,
    Headline,
    Severity,
    Topic,
    Trust,
    figure,
    judged,
)
from driftscope.vocabulary import UndraftedReason

_BOUNDED = "its step times are bounds from other K, not measured"
_NONE = (
    "Serve without speculation, or fix the drafter first: the other findings show what is wrong "
    "with it. Drafting costs more time than the accepted tokens save."
)
_SGLANG = "sglang"
_PARTLY = (
    "Leave drafts out at the loads at which they cost time: "
    "num_speculative_tokens_per_batch_size, a list of [first batch size, last, K], with K = 0."
)
_WORTH = Threshold(
    name="WORTH_SAYING",
    value=WORTH_SAYING,
    means="gain in tokens per second, whose 95% interval is above 0",
    source="driftscope: runs of one server differ by as much (run effect)",
)
_RUN_EFFECT = Threshold(
    name="RUN_EFFECT",
    value=RUN_EFFECT,
    means="relative standard deviation of one server's speed from one start to the next, which the "
    "interval of every ratio of two runs includes; servers that were started in turn several times "
    "show it",
    source="driftscope: 1 % on a GPU under CUDA graphs, 8 to 13 % on a busy CPU",
)
_MARGIN = Threshold(
    name="MARGIN",
    value=MARGIN,
    means="relative difference in speed below which neither is called faster",
    source="driftscope: nobody changes a server for less",
)
_CLOCKS = Threshold(
    name="CLOCKS_APART",
    value=CLOCKS_APART,
    means="relative difference of the speedup by the server's clock from that by its clients'",
    source="driftscope: twice RUN_EFFECT, which both clocks share",
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
    UndraftedReason.STRUCTURED_OUTPUT: "see the finding about structured output",
    UndraftedReason.PREEMPTED: "give the cache more memory (--gpu-memory-utilization) or lower "
    "--max-num-seqs: requests are preempted",
    UndraftedReason.TOKEN_BUDGET: "raise --max-num-batched-tokens: the step's token budget leaves "
    "no room for drafts",
    UndraftedReason.NO_DRAFT: "look at the engine's log: the drafter returned nothing, for no "
    "known reason",
}
_WORDS = {
    Answer.YES: "speculation pays",
    Answer.NO: "speculation costs time",
    Answer.CANNOT_TELL: "whether speculation pays cannot be told",
}
_PLACES_COMPARED = {Answer.NO: Headline.COSTS_TIME, Answer.YES: Headline.FASTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    requests: int
    mean_length: float
    interval: Interval | None


@entry(
    title="Eager and graph execution disagree",
    topic=Topic.WHERE,
    meaning="The same drafter accepts clearly less in one execution mode than in another, "
    "within a run or between two runs of the same models.",
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
    """Find that one drafter's acceptance depends on how it is executed."""
    for one, other, within in _pairs(case):
        worse, better = sorted((one, other), key=lambda side: side.mean_length)
        if worse.interval is None or better.interval is None:
            continue
        apart = difference(better.mean_length, better.interval, worse.mean_length, worse.interval)
        lost = (better.mean_length - worse.mean_length) / max(better.mean_length - 1.0, 1e-9)
        if apart.low > 0 and lost > DISAGREE_ABOVE.value:
            return _finding(case, worse, better, apart, lost, within=within)
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


def _pairs(case: Case) -> list[tuple[_Side, _Side, bool]]:
    """Return pairs to compare: groups of this run by execution, then this run with runs of the same
    models. The flag is True for pairs within the run."""
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
    return within_run + [
        (own, _of_run(other), False) for other in case.others if _twins(case, other)
    ]


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
    mine, its = case.run.manifest, other.manifest
    alike = all(getattr(mine, name) == getattr(its, name) for name in ("target", "drafter"))
    less = case.run.acceptance.mean_length < other.acceptance.mean_length
    same_k = not case.run.mixed and case.run.ks == other.ks
    return alike and same_k and mine.mode != its.mode and less


@entry(
    title="Serving is slower with speculation than without",
    topic=Topic.PAYS,
    meaning="The time per output token is longer with speculation than without: measured on the "
    "same prompts at the same load, or else bounded by step times: what the drafter takes, or what "
    "steps with more tokens take. The finding states which.",
    thresholds=(_RUN_EFFECT, _MARGIN, _CLOCKS, _WORTH),
    need=Need[Case](
        words="a run without speculation, or step times of 20 comparable steps with a draft",
        met=lambda case: bool(case.advice or case.plain or case.replayed),
    ),
)
def slower_than_none(case: Case) -> Finding | None:
    """Find that speculation serves slower than no speculation."""
    found = does_it_pay(case)
    return found if found.answer is Answer.NO else None


def does_it_pay(case: Case) -> Finding:
    """Return whether speculation pays, as every command answers it: measured on the same prompts by
    their senders, else against a run without speculation, else bounded by step times. A no is a
    finding, and has a severity."""
    if case.replayed is not None:
        return _measured_at_loads(case.replayed, case)
    if case.plain is not None and case.speedup is not None:
        return _measured_as_served(case, case.plain, *case.speedup)
    return _by_model(case)


def _measured_as_served(
    case: Case, plain: BaselineRun, speedup: float, interval: Interval
) -> Finding:
    """Return the answer by a run without speculation, over all that both served."""
    a, b, comparable = case.run.latency, plain.latency, case.plain_comparability
    decides = comparable.decides(Claim.SPEED)
    speedup, interval, taken_off = _without_probe(case, speedup, interval)
    answer = _answer(speedup, interval) if decides else Answer.CANNOT_TELL
    trust, because = _judged(min(case.run.requests, plain.requests), interval, answer)
    return Finding(
        **_measured(answer),
        statement=f"{_WORDS[answer]}: {speedup:.2f}× as fast as without ({interval.low:.2f}× to "
        f"{interval.high:.2f}×, measured: {milliseconds(a.tpot_s)} per token, "
        f"{milliseconds(b.tpot_s)} without{taken_off}){comparable.doubt(Claim.SPEED)}",
        estimate=speedup,
        interval=interval,
        evidence={
            **figure("tpot_s", a.tpot_s, a.tpot_s_interval),
            **figure("baseline_tpot_s", b.tpot_s, b.tpot_s_interval),
            **figure("speedup", speedup, interval),
        },
        confidence=trust,
        because=f"by a baseline run; {because}",
        advice=_to_do(answer, case),
        option=NO_SPECULATION if answer is Answer.NO else None,
        cost_tps=case.cost_of_gain(1.0 / speedup - 1.0) if answer is Answer.NO else None,
    )


def _measured_at_loads(replay: ReplayCase, case: Case | None = None) -> Finding:
    """Return the answer by the senders of the same prompts, at each load."""
    if not replay.speeds:
        return Finding(
            **_measured(Answer.CANNOT_TELL),
            statement=f"{_WORDS[Answer.CANNOT_TELL]}: too few prompts were answered both with and "
            "without speculation, and timed",
            advice=_to_do(Answer.CANNOT_TELL, case or replay),
        )
    by_answer: dict[Answer, list[SpeedAtLoad]] = {answer: [] for answer in Answer}
    speeds, taken_off = replay.speeds, ""
    if case is not None and case.run.manifest.run_id in replay.run.server_ids:
        eased = [_without_probe(case, one.decisive.value, one.decisive.interval) for one in speeds]
        taken_off = eased[0][2]
        speeds = tuple(
            replace(one, decisive=replace(one.decisive, value=value, interval=interval))
            for one, (value, interval, _) in zip(speeds, eased, strict=True)
        )
    decides = replay.comparability.decides(Claim.SPEED)
    for at_load in speeds:
        answer = _answer(at_load.decisive.value, at_load.decisive.interval)
        by_answer[answer if decides else Answer.CANNOT_TELL].append(at_load)
    slower, unknown, faster = (by_answer[answer] for answer in Answer)
    answer = Answer.NO if slower else Answer.YES if faster else Answer.CANNOT_TELL
    several = len(speeds) > 1
    parts = [
        f"{_WORDS[about]}{f' at {_loads(some)}' if several else ''}: "
        f"{listed([_speed_words(one) for one in some])}"
        for about, some in (
            (Answer.YES, faster),
            (Answer.NO, slower),
            (Answer.CANNOT_TELL, unknown),
        )
        if some
    ]
    speed = min((one.decisive for one in by_answer[answer]), key=lambda one: one.value)
    pairs = min(one.pairs for one in speeds)
    trust, because = _judged(pairs, speed.interval, answer)
    partly = answer is Answer.NO and len(slower) < len(speeds)
    return Finding(
        **_measured(answer),
        statement="; ".join([*parts, *_disagreements(speeds)])
        + taken_off
        + replay.comparability.doubt(Claim.SPEED),
        estimate=speed.value,
        interval=speed.interval,
        evidence=_evidence_at_loads(speeds),
        confidence=trust,
        because=f"by replays of the same {count(pairs, 'prompt')}; {because}",
        advice=_PARTLY if partly else _to_do(answer, case or replay),
        option=NO_SPECULATION if answer is Answer.NO and not partly else None,
        cost_tps=case.cost_of_gain(1.0 / speed.value - 1.0)
        if case is not None and answer is Answer.NO
        else None,
    )


def _without_probe(case: Case, speedup: float, interval: Interval) -> tuple[float, Interval, str]:
    """Return the speedup without the probe's own time, which a recording of every draft step makes
    long, with an interval that holds either way, and a clause that says so; unchanged if the probe
    took less than MARGIN."""
    share = case.run.recording.overhead_fraction or 0.0
    if share <= MARGIN:
        return speedup, interval, ""
    high = Interval(
        low=interval.low, high=interval.high / (1.0 - share), clusters=interval.clusters
    )
    return (
        speedup / (1.0 - share),
        high,
        f"; the probe's own time, {percent(share)} of it, taken off the first",
    )


def _measured(answer: Answer) -> dict[str, Any]:
    """Return what a measured answer is; only a no is a finding."""
    if answer is Answer.NO:
        return {
            "answer": answer,
            "severity": Severity.HIGH,
            "headline": Headline.MEASURED_LOSS,
        }
    return {"answer": answer, "headline": Headline.MEASURED}


def _judged(requests: int, interval: Interval, answer: Answer) -> tuple[Trust, str]:
    if answer is Answer.NO:
        return judged(requests, interval, below=1.0)
    return judged(requests, interval, above=1.0)


def _to_do(answer: Answer, case: Case | ReplayCase) -> str:
    if answer is Answer.CANNOT_TELL:
        return f"To know more surely, run `{to_tell(case)}` again, with more --rounds or prompts."
    return _NONE if answer is Answer.NO else ""


def to_tell(case: Case | ReplayCase) -> str:
    """Return the command that measures whether speculation pays on the same server."""
    if isinstance(case, ReplayCase):
        server = case.run.manifest.workload.get("server")
        url = server.get("url") if isinstance(server, Mapping) else None
        return f"driftscope pays {shlex.quote(str(url or 'http://localhost:8000'))}"
    if case.run.manifest.engine == _SGLANG:
        return "driftscope pays http://localhost:30000"
    return pays_command(case.run)


def _loads(speeds: Sequence[SpeedAtLoad]) -> str:
    """Return the loads in words: "1 and 4 at once"."""
    closed = [one.load.removesuffix(AT_ONCE) for one in speeds]
    if all(one.load.endswith(AT_ONCE) for one in speeds):
        return f"{listed(closed)}{AT_ONCE}"
    return listed([one.load for one in speeds])


def _speed_words(at_load: SpeedAtLoad) -> str:
    speed = at_load.decisive
    return (
        f"{speed.value:.2f}× as fast as without ({speed.interval.low:.2f}× to "
        f"{speed.interval.high:.2f}×; {milliseconds(speed.own)} per token, "
        f"{milliseconds(speed.other)} without)"
    )


def _disagreements(speeds: Sequence[SpeedAtLoad]) -> list[str]:
    """Return in words where the servers' own clocks show another speedup than the clients'."""
    return [
        f"at {one.load} the server alone is {one.by_server[TPOT].value:.2f}× as fast, but its "
        f"clients get {one.by_client[TPOT].value:.2f}×: the difference arises outside the engine, "
        "in its front end, the network or the sender"
        for one in speeds
        if one.disagree
    ]


def _evidence_at_loads(speeds: Sequence[SpeedAtLoad]) -> dict[str, float | int | None]:
    return {
        name: value
        for one in speeds
        for clock, by_quantity in (("client", one.by_client), ("server", one.by_server))
        for quantity, speed in by_quantity.items()
        for name, value in figure(
            f"{clock}_{quantity.removesuffix('_s')}_speed_{one.load.replace(' ', '_')}",
            speed.value,
            speed.interval,
        ).items()
    }


def _by_model(case: Case) -> Finding:
    advice = case.advice
    bounds = None if advice is None else model_ratio(advice)
    if advice is not None and advice.none_is_faster:
        drafter = advice.useless or advice.surely_slower
        trust, because = (_by_drafter if drafter else _by_bounds)(case.run.requests, advice)
        gain = advice.least_gain if drafter else advice.gains[0].value
        least, words = _without(advice)
        return Finding(
            severity=Severity.HIGH,
            answer=Answer.NO,
            headline=Headline.COSTS_TIME,
            statement=words,
            estimate=None if least is None else 1 / (1 + least),
            evidence=_evidence(case, advice, 0, advice.gains[0]),
            confidence=trust,
            because=because,
            advice=_NONE,
            assumed=advice.assumed,
            option=NO_SPECULATION,
            cost_tps=None if gain is None else case.cost_of_gain(gain),
        )
    if bounds is None or not bounds[1].low > 1:
        return Finding(
            answer=Answer.CANNOT_TELL,
            statement="whether speculation pays is not known, because there is no run without it",
            advice=f"To know, run `{to_tell(case)}`: the same prompts with and without it.",
        )
    return Finding(
        answer=Answer.YES,
        headline=Headline.PAYS,
        statement=f"speculation pays: at least {bounds[1].low:.2f}× as fast as without (at most "
        f"{bounds[1].high:.2f}×, bounded by step times)",
        estimate=bounds[0],
        interval=bounds[1],
    )


def _by_drafter(requests: int, advice: Advice) -> tuple[Trust, str]:
    """Return trust and reason from the drafter's measured time alone, whatever verification
    costs."""
    enough = advice.useless or requests >= FEW_REQUESTS
    because = (
        "the drafter's measured time, and the acceptance length at the upper end of its 95% "
        f"interval, of {count(requests, 'request')}"
    )
    return Trust.HIGH if enough else Trust.LOW, because


def _by_bounds(requests: int, advice: Advice) -> tuple[Trust, str]:
    measured, gain = 0 in advice.measured_k, advice.gains[0]
    trust, because = judged(
        requests, gain.interval, above=0.0, assumed=[] if measured else [_BOUNDED]
    )
    how = "step times were measured without speculation" if measured else "by bounds of step times"
    return trust, (
        f"by step times, because no baseline was given ({how}: {_times(advice, 0)}; "
        f"{percent(gain.value)} more tokens per second without speculation"
        f"{between_percent(gain.interval)}); {because}"
    )


@entry(
    title="A smaller K serves faster",
    topic=Topic.PAYS,
    meaning="K is too high for the batch sizes and contexts that were served: the last depths "
    "cost more time than their accepted tokens save. Another K was measured, or is known to "
    "be within 5% of the fastest whatever its steps cost.",
    thresholds=(_WORTH,),
    need=_OTHER,
)
def smaller_k(case: Case) -> Finding | None:
    """Find that a K smaller than the one that ran, and not 0, is surely faster."""
    k = _faster_k(case)
    if k is None or not 0 < k < _drafted(case.run):
        return None
    return _other_k(case)


@entry(
    title="A larger K serves faster",
    topic=Topic.PAYS,
    meaning="K is too low: a run with a larger K was measured, and its last depths save more "
    "time than they cost.",
    thresholds=(_WORTH,),
    need=_OTHER,
)
def larger_k(case: Case) -> Finding | None:
    """Find that a K larger than the one that ran was measured, and is surely faster."""
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
        case.run.requests, gain.interval, above=0.0, assumed=[] if choice.measured else [_BOUNDED]
    )
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"{faster(advice)}: {_times(advice, choice.k)}{_by_batch(advice)}",
        evidence=_evidence(case, advice, choice.k, gain),
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
    meaning="A single K for all batch sizes serves fewer tokens per second than a separate K "
    "for some of them, among K that were measured there.",
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
    """Find that separate measured K for some batch sizes surely beat the best single K."""
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


def _times(advice: Advice, k: int) -> str:
    at = advice.overall
    return (
        f"{milliseconds(at.tpot_s[k].value)} per output token with K = {k}, "
        f"{milliseconds(at.ran.value)} with {advice.served.words}"
    )


def _by_batch(advice: Advice) -> str:
    ranges = by_batch(advice)
    return f"; fastest measured K by batch size: {listed(ranges)}" if ranges else ""


def _evidence(case: Case, advice: Advice, k: int, gain: Estimate) -> dict[str, float | int | None]:
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
    meaning="Decode steps had no draft although no setting asked for K = 0: the context limit, "
    "a preemption, the token budget, a grammar, or a drafter that returned nothing.",
    thresholds=(MISSING_ABOVE,),
    need=ALWAYS,
)
def drafts_missing(case: Case) -> Finding | None:
    """Find steps that should have drafted and did not."""
    share, spread = case.run.groups.failed_share, case.run.groups.failed_share_interval
    if not share > MISSING_ABOVE.value:
        return None
    reasons = {
        name: n
        for name, n in case.run.fallback.by_reason.items()
        if name not in UndraftedReason.DELIBERATE
    }
    worst = max(reasons, key=lambda name: reasons[name])
    trust, because = judged(case.run.requests, spread, above=MISSING_ABOVE.value)
    named = listed([f"{name.replace('_', ' ')} {n:,}" for name, n in reasons.items()])
    return Finding(
        severity=Severity.HIGH if share > 0.5 else Severity.MEDIUM,
        statement=f"{percent(share)} of the decode steps had no draft, and no setting asked for "
        f"that ({named}); {percent(_deliberate(case))} were left out on purpose",
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
    meaning="A setting asked for K = 0, by batch size for example. That is a choice, and is "
    "counted separately from failures to draft.",
    thresholds=(LEFT_OUT_ABOVE,),
    need=ALWAYS,
)
def drafts_left_out(case: Case) -> Finding | None:
    """Find steps for which a setting asked for no draft: a choice, not a fault."""
    share = _deliberate(case)
    if not share > LEFT_OUT_ABOVE.value:
        return None
    return Finding(
        severity=Severity.INFO,
        statement=f"{percent(share)} of the decode steps had no draft because a setting asked for "
        f"K = 0; {percent(case.run.groups.failed_share)} had none for another reason",
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
    meaning="A grammar rejected whole drafts, as happens where tool calls or structured output "
    "begin.",
    thresholds=(BOUNDARY_ABOVE,),
    need=ALWAYS,
)
def structured_output_loses_drafts(case: Case) -> Finding | None:
    """Find that a grammar discards drafts where tool calls or structured output begin and
    continue."""
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


@question("Does the run serve faster than the run that it is compared with?", Topic.PAYS)
def faster_than_reference(case: Case) -> Finding | None:
    """Return whether a run serves faster than the run that it is compared with; None if it is not
    compared, or if the two do not serve the same target."""
    other = case.reference
    if other is None or other.manifest.target != case.run.manifest.target:
        return None
    compared = speed_by_means(other.latency, case.run.latency)
    if compared is None:
        return None
    value, interval = compared
    comparable = case.comparability
    sure = comparable.decides(Claim.SPEED)
    answer = _answer(value, interval) if sure else Answer.CANNOT_TELL
    words = {
        Answer.YES: f"serves {_change(value)} faster than {other.label}",
        Answer.NO: f"serves {_change(1 / value)} slower than {other.label}",
        Answer.CANNOT_TELL: f"whether it serves faster than {other.label} cannot be told",
    }[answer]
    low, high = interval.low, interval.high
    if answer is Answer.NO:
        low, high = 1 / high, 1 / low
    record = f"To know, run `{pays_command(other, case.run)}`, which serves both in turn."
    return Finding(
        answer=answer,
        headline=_PLACES_COMPARED.get(answer, Headline.NEVER),
        statement=f"{words} ({_change(low)} to {_change(high)}; "
        f"{milliseconds(case.run.latency.tpot_s)} per token, compared with "
        f"{milliseconds(other.latency.tpot_s)}){comparable.doubt(Claim.SPEED)}",
        estimate=value,
        interval=interval,
        reference=other.label,
        advice=record if answer is Answer.CANNOT_TELL else "",
    )


@question("Does speculation serve faster than no speculation?", Topic.PAYS)
def pays(case: Case) -> Finding | None:
    """Return whether speculation pays; None if a rule found that it does not."""
    return None if case.is_answered(Topic.PAYS) else does_it_pay(case)


def without_speculation(run: BaselineRun) -> Finding:
    """Return the speed of a run without speculation, and what tells whether speculation pays."""
    latency, interval = run.latency, run.latency.tpot_s_interval
    ends = ""
    if interval is not None:
        ends = f" ({milliseconds(interval.low)} to {milliseconds(interval.high)})"
    measure = "record the same prompts with a drafter"
    if run.manifest.engine != _SGLANG:
        target = shlex.quote(run.manifest.target.name)
        measure = f"run `driftscope pays {target} --drafter DRAFTER`, or {measure}"
    return Finding(
        topic=Topic.PAYS,
        answer=Answer.CANNOT_TELL,
        statement=f"without speculation an output token takes {milliseconds(latency.tpot_s)}{ends} "
        f"and the first one {milliseconds(latency.ttft_s)}, over {run.requests:,} requests",
        advice=f"To know whether speculation pays, {measure} and add --baseline {run.label}.",
    )


@entry(
    about=ReplayCase,
    title="Clients are served slower with speculation than without",
    topic=Topic.PAYS,
    meaning="The time per output token as clients see it is longer with speculation than without, "
    "on the same prompts at the same load.",
    thresholds=(_RUN_EFFECT, _MARGIN, _CLOCKS),
    need=Need(
        words="a second replay of the same prompts, of a server without speculation",
        met=lambda case: case.with_and_without,
    ),
)
def slower_for_clients(case: ReplayCase) -> Finding | None:
    """Find that speculation serves clients slower than no speculation."""
    found = _measured_at_loads(case) if case.with_and_without else None
    return found if found is not None and found.answer is Answer.NO else None


@question("Does speculation serve faster than no speculation?", Topic.PAYS, ReplayCase)
def pays_for_clients(case: ReplayCase) -> Finding | None:
    """Return whether speculation pays for the senders of the same prompts; None without a replay of
    a server that does not speculate, or if a rule found that it does not."""
    found = _measured_at_loads(case) if case.with_and_without else None
    return None if found is not None and found.answer is Answer.NO else found


def _without(advice: Advice) -> tuple[float | None, str]:
    """Return the least gain of serving without speculation, and what it costs in words."""
    drafter = advice.useless or advice.surely_slower
    interval = advice.gains[0].interval
    gain = advice.least_gain if drafter else None if interval is None else interval.low
    how = "from the drafter's measured time" if drafter else "from step times"
    return gain, (
        f"speculation costs time: without it serving is at least {percent(gain)} faster ({how})"
    )


def model_ratio(advice: Advice) -> tuple[float, Interval] | None:
    """Return the time per token without speculation over that of the run, with its bounds; None if
    it is not known, or if the bounds rest on more than measured times: steps of one K say nothing
    about what few tokens cost."""
    none = advice.gains[0]
    if advice.assumed or advice.doubt is not None or none.interval is None:
        return None
    interval = Interval.of(1 / (1 + none.interval.high), 1 / (1 + none.interval.low))
    return None if interval is None else (1 / (1 + none.value), interval)


def _answer(speed: float, interval: Interval) -> Answer:
    faster = is_faster(speed, interval)
    return Answer.CANNOT_TELL if faster is None else Answer.YES if faster else Answer.NO


def _change(speed: float) -> str:
    return f"{100 * (speed - 1):.0f}%"
