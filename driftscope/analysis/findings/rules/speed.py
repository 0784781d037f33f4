"""Rules about speed: whether another K, or no speculation, would serve faster."""

from __future__ import annotations

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.cost.advice_words import by_batch, faster, to_measure
from driftscope.analysis.cost.choice import WORTH_SAYING
from driftscope.analysis.cost.predict import Estimate
from driftscope.analysis.cost.schedule import GAINS_AT_LEAST
from driftscope.analysis.cost.vllm_options import NO_SPECULATION
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import between_percent, count, listed, milliseconds, percent
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS
from driftscope.analysis.statistics.intervals.interval import difference
from driftscope.analysis.summary.run_summary import RunSummary


def smaller_k(case: Case) -> Finding | None:
    """Find that a K smaller than the one that ran, and not 0, is surely faster."""
    k = _faster_k(case)
    if k is None or not 0 < k < _drafted(case.run):
        return None
    return _other_k(case, "smaller_k", "A smaller K serves faster")


def larger_k(case: Case) -> Finding | None:
    """Find that a K larger than the one that ran was measured, and is surely faster."""
    k = _faster_k(case)
    if k is None or not k > _drafted(case.run):
        return None
    return _other_k(case, "larger_k", "A larger K serves faster")


def _faster_k(case: Case) -> int | None:
    return case.advice.choice.k if case.advice is not None and case.advice.worth_it else None


def _drafted(run: RunSummary) -> float:
    """Return the tokens that the run drafted in a round."""
    return run.effective_k if run.mixed and run.effective_k is not None else run.k


def _other_k(case: Case, name: str, title: str) -> Finding:
    advice = case.advice
    assert advice is not None  # noqa: S101  the caller looks at its choice
    choice, gain = advice.choice, advice.choice.gain
    assert choice.k is not None and gain is not None  # noqa: S101
    trust, because = judged(
        case.run.requests, gain.interval, above=0.0, assumed=[] if choice.measured else [_BOUNDED]
    )
    return Finding(
        id=name,
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title=title,
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


def k_by_batch_size(case: Case) -> Finding | None:
    """Find that separate measured K for some batch sizes surely beat the best single K."""
    advice = case.advice
    if advice is None or not advice.schedule_worth_it:
        return None
    gain = advice.schedule_gain
    trust, because = judged(case.run.requests, gain.interval, above=GAINS_AT_LEAST)
    return Finding(
        id="k_by_batch_size",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="The best K depends on the batch size",
        statement=f"the fastest measured K is {listed(by_batch(advice))}; together they are "
        f"{percent(gain.value)} faster than {_instead(advice)}{between_percent(gain.interval)}",
        evidence={
            "k": case.run.k,
            "gain_over_fixed": gain.value,
            **ends("gain_over_fixed", gain.interval),
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


def slower_than_none(case: Case) -> Finding | None:
    """Find that speculation serves slower than no speculation: by a baseline if there is one,
    otherwise by the cost model."""
    if case.plain is not None and case.plain.latency.tpot_s_interval is not None:
        return _by_baseline(case)
    return _by_model(case)


def _by_baseline(case: Case) -> Finding | None:
    plain, run = case.plain, case.run
    assert plain is not None  # noqa: S101  the caller looks at its interval
    a, b = run.latency, plain.latency
    if a.tpot_s is None or b.tpot_s is None or not a.tpot_s_interval or not b.tpot_s_interval:
        return None
    apart = difference(a.tpot_s, a.tpot_s_interval, b.tpot_s, b.tpot_s_interval)
    if not apart.low > 0:
        return None
    trust, because = judged(
        min(run.requests, plain.requests),
        apart,
        above=0.0,
        assumed=["the two runs may not have had the same load"],
    )
    return Finding(
        id="slower_than_none",
        severity=Severity.HIGH,
        runs=(run.label,),
        title="Serving is slower with speculation than without",
        statement=f"measured against the baseline {plain.label}: {milliseconds(a.tpot_s)} per "
        f"output token with speculation, {milliseconds(b.tpot_s)} without",
        evidence={
            "tpot_s": a.tpot_s,
            **ends("tpot_s", a.tpot_s_interval),
            "baseline_tpot_s": b.tpot_s,
            **ends("baseline_tpot_s", b.tpot_s_interval),
            "difference_s": a.tpot_s - b.tpot_s,
            **ends("difference_s", apart),
        },
        confidence=trust,
        because=f"by a baseline run; {because}",
        advice=_NONE,
        option=NO_SPECULATION,
        cost_tps=case.cost_of_gain(a.tpot_s / b.tpot_s - 1.0),
    )


def _by_model(case: Case) -> Finding | None:
    advice = case.advice
    if advice is None or not advice.none_is_faster:
        return None
    drafter = advice.useless or advice.surely_slower
    by = _by_drafter if drafter else _by_bounds
    trust, because, statement = by(case.run.requests, advice)
    gain = advice.least_gain if drafter else advice.gains[0].value
    return Finding(
        id="slower_than_none",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Serving is slower with speculation than without",
        statement=statement,
        evidence=_evidence(case, advice, 0, advice.gains[0]),
        confidence=trust,
        because=because,
        advice=_NONE,
        assumed=advice.assumed,
        option=NO_SPECULATION,
        cost_tps=None if gain is None else case.cost_of_gain(gain),
    )


def _by_drafter(requests: int, advice: Advice) -> tuple[Trust, str, str]:
    """Return trust, reason and statement from the drafter's measured time alone, whatever
    verification costs."""
    enough = advice.useless or requests >= FEW_REQUESTS
    because = (
        "the drafter's measured time, and the acceptance length at the upper end of its 95% "
        f"interval, of {count(requests, 'request')}"
    )
    statement = (
        "drafting takes more time than the accepted tokens save: without the drafter the engine "
        f"yields at least {percent(advice.least_gain)} more tokens per second"
    )
    return Trust.HIGH if enough else Trust.LOW, because, statement


def _by_bounds(requests: int, advice: Advice) -> tuple[Trust, str, str]:
    measured, gain = 0 in advice.measured_k, advice.gains[0]
    trust, because = judged(
        requests, gain.interval, above=0.0, assumed=[] if measured else [_BOUNDED]
    )
    how = "step times were measured without speculation" if measured else "by bounds of step times"
    statement = (
        f"{how}: {_times(advice, 0)}; {percent(gain.value)} more tokens per second without "
        f"speculation{between_percent(gain.interval)}"
    )
    return trust, f"by step times, because no baseline was given; {because}", statement


_BOUNDED = "its step times are bounds from other K, not measured"
_NONE = (
    "Serve without speculation, or fix the drafter first: the other findings show what is wrong "
    "with it. Drafting costs more time than the accepted tokens save."
)


def _times(advice: Advice, k: int) -> str:
    at = advice.overall
    return (
        f"{milliseconds(at.tpot_s[k].value)} per output token with K = {k}, "
        f"{milliseconds(at.ran.value)} with {advice.served.words}"
    )


def _instead(advice: Advice) -> str:
    """Return in words what a schedule is compared with."""
    return advice.served.words if advice.served.mixed else "the best single K"


def _by_batch(advice: Advice) -> str:
    ranges = by_batch(advice)
    return f"; fastest measured K by batch size: {listed(ranges)}" if ranges else ""


def _evidence(case: Case, advice: Advice, k: int, gain: Estimate) -> dict[str, float | int | None]:
    times = advice.overall.tpot_s
    return {
        "k": case.run.k,
        "suggested_k": k,
        "gain": gain.value,
        **ends("gain", gain.interval),
        "tpot_s_now": advice.overall.ran.value,
        **ends("tpot_s_now", advice.overall.ran.interval),
        "tpot_s_suggested": times[k].value,
        **ends("tpot_s_suggested", times[k].interval),
        "misfit": advice.misfit,
        "threshold": WORTH_SAYING,
    }


_NEED = Need[Case](
    words="step times of 20 or more comparable steps that drafted",
    met=lambda case: case.advice is not None,
)
_WORTH = Threshold(
    name="WORTH_SAYING",
    value=WORTH_SAYING,
    means="gain in tokens per second, whose 95% interval is above 0",
    source="driftscope: runs of one server differ by as much (run effect)",
)
_OTHER = Need[Case](
    words="step times of 20 or more comparable steps that drafted, of runs at two or more K",
    met=lambda case: case.advice is not None and len(case.advice.measured_k) > 1,
)

ENTRIES = (
    Entry(
        id="slower_than_none",
        title="Serving is slower with speculation than without",
        meaning="The time per output token is longer with speculation than without: measured "
        "against a baseline run if one is given, otherwise bounded by step times: what the drafter "
        "takes, or what steps with more tokens take. The finding states which.",
        thresholds=(_WORTH,),
        need=_NEED,
        rule=slower_than_none,
    ),
    Entry(
        id="smaller_k",
        title="A smaller K serves faster",
        meaning="K is too high for the batch sizes and contexts that were served: the last depths "
        "cost more time than their accepted tokens save. Another K was measured, or is known to "
        "be within 5% of the fastest whatever its steps cost.",
        thresholds=(_WORTH,),
        need=_OTHER,
        rule=smaller_k,
    ),
    Entry(
        id="larger_k",
        title="A larger K serves faster",
        meaning="K is too low: a run with a larger K was measured, and its last depths save more "
        "time than they cost.",
        thresholds=(_WORTH,),
        need=_OTHER,
        rule=larger_k,
    ),
    Entry(
        id="k_by_batch_size",
        title="The best K depends on the batch size",
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
        rule=k_by_batch_size,
    ),
)
