"""Rules about speed: whether another K, or no speculation, would serve faster."""

from __future__ import annotations

from driftscope.analysis.cost.advice import AHEAD, NO_SPECULATION, WORTH_SAYING, Advice
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import between_percent, count, listed, milliseconds, percent
from driftscope.analysis.statistics.interval import FEW_REQUESTS, difference
from driftscope.analysis.summary.run_summary import RunSummary


def smaller_k(case: Case) -> Finding | None:
    """Find that the cost model's best K is clearly faster than the K that ran, smaller, and not
    0."""
    advice = case.advice
    if advice is None or not advice.worth_it or not _fewer(case.run, advice.overall.best_k):
        return None
    best, gain = advice.overall.best_k, advice.overall.gain
    trust, because = judged(
        case.run.requests, gain.interval, above=0.0, assumed=_assumed(advice, best)
    )
    return Finding(
        id="smaller_k",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="A smaller K would probably serve faster",
        statement=f"the cost model gives {percent(gain.value)} more tokens per second with K = "
        f"{best} than with {advice.served.words}{between_percent(gain.interval)}: "
        f"{_times(advice, best)}"
        f"{_by_batch(advice)}{_by_context(advice)}",
        evidence=_evidence(case, advice, best),
        confidence=trust,
        because=because,
        advice=f"Try num_speculative_tokens = {best} under your own load and compare the time per "
        "output token.",
        assumed=advice.assumed,
        option=advice.fixed_command,
        cost_tps=case.cost_at_k(best),
    )


def _fewer(run: RunSummary, best: int) -> bool:
    """Whether K = `best` drafts fewer tokens than the run did, but at least one."""
    drafted = run.effective_k if run.mixed and run.effective_k is not None else run.k
    return 0 < best < drafted


def k_by_batch_size(case: Case) -> Finding | None:
    """Find that separate K for some batch sizes clearly beat the best single K."""
    advice = case.advice
    if advice is None or not advice.schedule_worth_it:
        return None
    gain = advice.schedule_gain
    trust, because = judged(
        case.run.requests, gain.interval, above=0.0, assumed=_assumed(advice, 0)
    )
    ranges = listed([f"{k} for batches of {first} to {last}" for first, last, k in advice.schedule])
    return Finding(
        id="k_by_batch_size",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="The best K depends on the batch size",
        statement=f"the cost model's best K is {ranges}; together {percent(gain.value)} faster "
        f"than {_instead(advice)}{between_percent(gain.interval)}",
        evidence={
            "k": case.run.k,
            "gain_over_fixed": gain.value,
            **ends("gain_over_fixed", gain.interval),
            **{f"best_k_at_{first}": k for first, _, k in advice.schedule},
            "threshold": WORTH_SAYING,
        },
        confidence=trust,
        because=because,
        advice="Set num_speculative_tokens_per_batch_size, a list of [first batch size, last, K]. "
        "vLLM ignores it with data parallelism.",
        assumed=advice.assumed,
        option=advice.schedule_command,
        cost_tps=case.cost_of_gain(gain.value),
    )


def larger_k(case: Case) -> Finding | None:
    """Find that the last depth pays so well that further depths probably would, too."""
    advice, run = case.advice, case.run
    if (
        advice is None
        or run.mixed
        or advice.overall.best_k != run.k
        or run.acceptance.conditional[-1] is None
    ):
        return None
    told = [(k, gain) for k, gain in advice.beyond if gain.surely_above(0.0)]
    if not told or advice.doubt is not None:
        return None
    k, gain = max(told, key=lambda each: each[1].value)
    if not gain.value >= WORTH_SAYING:
        return None
    trust, because = judged(
        run.requests, gain.interval, above=0.0, assumed=["acceptance beyond K was never measured"]
    )
    return Finding(
        id="larger_k",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="A larger K would probably serve faster",
        statement=f"if further depths are accepted like depth {run.k} "
        f"({percent(run.acceptance.conditional[-1])} of the rounds that get there), K = {k} gives "
        f"{percent(gain.value)} more tokens per second{between_percent(gain.interval)}",
        evidence={
            "k": run.k,
            "suggested_k": k,
            "gain": gain.value,
            **ends("gain", gain.interval),
            "conditional_last": run.acceptance.conditional[-1],
            "threshold": WORTH_SAYING,
        },
        confidence=trust,
        because=because,
        advice=f"Try num_speculative_tokens = {k} under your own load, record again, and compare. "
        "A drafter may not have been trained for that many depths.",
        assumed=advice.assumed,
        option=f'"num_speculative_tokens": {k}',
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
        title="Speculation serves slower than none",
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
    if advice is None:
        return None
    if advice.useless or advice.surely_slower:
        if advice.least_gain is None:
            return None
        trust, because, statement = _by_drafter(case.run.requests, advice)
    elif advice.overall.best_k == 0 and advice.worth_it:
        trust, because, statement = _by_prediction(case.run.requests, advice)
    else:
        return None
    return Finding(
        id="slower_than_none",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Speculation serves slower than none",
        statement=statement,
        evidence=_evidence(case, advice, 0),
        confidence=trust,
        because=because,
        advice=_NONE,
        assumed=advice.assumed,
        option=NO_SPECULATION,
        cost_tps=case.cost_at_k(0),
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
        "drafting takes more time than its accepted tokens save: without the drafter there are at "
        f"least {percent(advice.least_gain)} more tokens per second"
    )
    return Trust.HIGH if enough else Trust.LOW, because, statement


def _by_prediction(requests: int, advice: Advice) -> tuple[Trust, str, str]:
    gain = advice.overall.gain
    trust, because = judged(requests, gain.interval, above=0.0, assumed=_assumed(advice, 0))
    statement = (
        f"by the cost model: {_times(advice, 0)}; {percent(gain.value)} more tokens per second "
        f"without{between_percent(gain.interval)}"
    )
    return trust, f"by the cost model, no baseline was given; {because}", statement


_NONE = (
    "Serve without speculation, or fix the drafter first: the other findings say what is wrong "
    "with it. Drafting costs more than its accepted tokens save."
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
    if len(advice.schedule) < 2:
        return ""
    return "; best K by batch size: " + listed(
        [f"{k} for {first} to {last}" for first, last, k in advice.schedule]
    )


def _by_context(advice: Advice) -> str:
    if len({at.best_k for _, at in advice.by_context}) < 2:
        return ""
    return "; by context length: " + listed(
        [f"{at.best_k} for {name}" for name, at in advice.by_context]
    )


def _evidence(case: Case, advice: Advice, k: int) -> dict[str, float | int | None]:
    times, gain = advice.overall.tpot_s, advice.overall.gain
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


def _assumed(advice: Advice, k: int) -> list[str]:
    return [] if k and not advice.assumed else list(advice.assumed)


_NEED = Need[Case](
    words="step times of 20 or more like steps that drafted",
    met=lambda case: case.advice is not None,
)
_WORTH = Threshold(
    name="WORTH_SAYING",
    value=WORTH_SAYING,
    means="estimated gain in tokens per second, whose 95% interval is above 0",
    source="driftscope: a model of two straight lines is not trusted to less",
)

ENTRIES = (
    Entry(
        id="slower_than_none",
        title="Speculation serves slower than none",
        meaning="The time per output token is longer with speculation than without: measured "
        "against a baseline run where one is given, else by the cost model. It says which.",
        thresholds=(_WORTH,),
        need=_NEED,
        rule=slower_than_none,
    ),
    Entry(
        id="smaller_k",
        title="A smaller K would probably serve faster",
        meaning="K is too high for the batch sizes and contexts that were served: the last depths "
        "cost more than they bring.",
        thresholds=(_WORTH,),
        need=_NEED,
        rule=smaller_k,
    ),
    Entry(
        id="larger_k",
        title="A larger K would probably serve faster",
        meaning="K is too low: the last depth pays, and so would more if accepted like it.",
        thresholds=(
            _WORTH,
            Threshold(
                name="AHEAD",
                value=AHEAD,
                means="depths beyond K that are extrapolated",
                source="driftscope: each is one more rate that was never measured",
            ),
        ),
        need=Need[Case](
            words="step times at several batch sizes or K, and a K of 2 or more",
            met=lambda case: case.advice is not None and bool(case.advice.beyond),
        ),
        rule=larger_k,
    ),
    Entry(
        id="k_by_batch_size",
        title="The best K depends on the batch size",
        meaning="One K for all batch sizes leaves tokens per second behind, beside a K of its own "
        "for some.",
        thresholds=(_WORTH,),
        need=_NEED,
        rule=k_by_batch_size,
    ),
)
