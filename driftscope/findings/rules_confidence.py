"""Rules about the drafter's confidence: whether it predicts acceptance, and goes on doing so."""

from __future__ import annotations

import math
from statistics import NormalDist

from driftscope.analysis.figures.calibration import CalibrationAtDepth
from driftscope.analysis.figures.near_misses import MOST, Remedy
from driftscope.analysis.number_words import between, moment, number, percent
from driftscope.analysis.statistics.intervals import Z95, Interval
from driftscope.analysis.statistics.permutation import ALPHA
from driftscope.analysis.summary.run_summary import cuts_by_confidence
from driftscope.findings.case import Case, Need, Threshold, entry
from driftscope.findings.finding import Finding, Severity, Topic, Trust, figure

OFF_ABOVE = Threshold(
    name="OFF_ABOVE",
    value=0.05,
    means="confidence minus acceptance at a depth, either way, that the simultaneous 95% interval "
    "has to exceed",
    source="driftscope: half of what tells a mistake in the wiring from too little training",
)
TEMPERATURE_ABOVE = Threshold(
    name="TEMPERATURE_ABOVE",
    value=1.25,
    means="fitted temperature, or its inverse, that the simultaneous 95% interval has to exceed",
    source="driftscope: it moves a confidence of 0.8 to 0.75",
)
MOVES_ABOVE = Threshold(
    name="MOVES_ABOVE",
    value=0.03,
    means="change of confidence minus acceptance, either way, at equal kinds of text and depths",
    source="driftscope: below it the best confidence threshold hardly changes",
)
_CALIBRATED = Need[Case](
    words="recorded confidences of rounds of 10 or more independent requests",
    met=lambda case: any(
        at.bias_interval is not None for at in case.run.confidence.calibration.by_depth
    ),
)
_CHANCE = 0.5
"""AUROC of a confidence that tells nothing."""
_TRIMS = "The engine cuts drafts by this confidence: fit it anew to this traffic."


def _widened(value: float, interval: Interval | None, depths: int) -> Interval | None:
    """Return an interval that holds for all depths together (Bonferroni)."""
    if interval is None:
        return None
    factor = NormalDist().inv_cdf(1.0 - ALPHA / 2 / depths) / Z95
    low, high = (value + factor * (end - value) for end in (interval.low, interval.high))
    return Interval.between(low, high, interval.clusters)


def _excess(at: CalibrationAtDepth, depths: int) -> float:
    """Return by how many times a depth surely exceeds one of the bounds; at most 1 if none."""
    bias, heat = _widened(at.bias, at.bias_interval, depths), None
    if at.temperature is not None and at.temperature_interval is not None:
        spread = at.temperature_interval
        logs = Interval.between(math.log(spread.low), math.log(spread.high))
        heat = _widened(math.log(at.temperature), logs, depths)
    return max(
        (
            max(spread.low, -spread.high) / bound
            for spread, bound in (
                (bias, OFF_ABOVE.value),
                (heat, math.log(TEMPERATURE_ABOVE.value)),
            )
            if spread is not None
        ),
        default=0.0,
    )


@entry(
    title="The drafter's confidence is not what it accepts",
    topic=Topic.INSIDE,
    thresholds=(OFF_ABOVE, TEMPERATURE_ABOVE),
    need=_CALIBRATED,
)
def confidence_off(case: Case) -> Finding | None:
    """The drafter is surer, or less sure, of its tokens than they are accepted. That costs nothing
    by itself; it matters where an engine trims drafts by confidence."""
    run = case.run
    depths = [at for at in run.confidence.calibration.by_depth if at.bias_interval is not None]
    at = max(depths, key=lambda at: _excess(at, len(depths)), default=None)
    if at is None or not _excess(at, len(depths)) > 1.0:
        return None
    trims = cuts_by_confidence(run)
    fitted = [f"{one.depth}: {number(one.temperature)}" for one in depths if one.temperature]
    # How far confidence is off at a depth, and whether a threshold can tell accepted tokens
    # from rejected ones there.
    spread, heat, rank = at.bias_interval, at.temperature_interval, at.auroc_interval
    ends = ""
    if spread is not None:
        ends = f" ({100 * spread.low:+.0f} to {100 * spread.high:+.0f} points)"
    sure, right = percent(at.confidence), percent(at.accepted)
    words = [f"at depth {at.depth} the drafter is {sure} sure and {right} is accepted{ends}"]
    if heat is not None:
        words.append(f"fitted temperature {number(at.temperature)}{between(heat)}")
    if rank is not None:
        can = "a threshold tells" if rank.low > _CHANCE else "no threshold is known to tell"
        words.append(
            f"{can} accepted tokens from rejected ones: AUROC {number(at.auroc)}{between(rank)}"
        )
    return Finding(
        severity=Severity.MEDIUM if trims else Severity.INFO,
        statement="; ".join(words),
        evidence={
            "depth": at.depth,
            **figure("bias", at.bias, at.bias_interval),
            **figure("temperature", at.temperature, at.temperature_interval),
            "ece": at.ece,
            "survival_ece": at.survival_ece,
            "threshold": OFF_ABOVE.value,
        },
        confidence=Trust.HIGH,
        because="the simultaneous 95% interval lies clear of a threshold",
        advice=f"{_TRIMS if trims else 'Before you trim drafts by confidence, divide its logit.'} "
        f"Temperatures by depth: {', '.join(fitted) or 'none can be fitted'}.",
    )


@entry(
    title="The drafter's confidence moved against acceptance",
    topic=Topic.INSIDE,
    thresholds=(
        MOVES_ABOVE,
        Threshold(
            name="ALPHA",
            value=ALPHA,
            means="p-value of the largest change over random orders of the requests",
            source="convention; `make calibration`, table confidence",
        ),
    ),
    need=Need[Case](
        words="recorded confidences of 20 or more independent requests",
        met=lambda case: case.run.confidence.calibration.shift is not None,
    ),
)
def confidence_moves(case: Case) -> Finding | None:
    """From a moment on, the drafter is surer or less sure of its tokens than before, compared with
    how often they are accepted, at equal kinds of text and depths. A threshold that was right
    before is not right after it."""
    shift = case.run.confidence.calibration.shift
    if shift is None or not shift.p < ALPHA or shift.interval is None:
        return None
    if not shift.interval.excludes_zero() or abs(shift.moved) < MOVES_ABOVE.value:
        return None
    since = moment(shift.time_s)
    trims = cuts_by_confidence(case.run)
    return Finding(
        severity=Severity.MEDIUM if trims else Severity.INFO,
        statement=f"from {since} on, confidence minus acceptance is {100 * shift.after:+.0f} "
        f"points, before it was {100 * shift.before:+.0f}",
        evidence={
            **figure("moved", shift.moved, shift.interval),
            "before": shift.before,
            "after": shift.after,
            "p": shift.p,
            "time_s": shift.time_s,
        },
        confidence=Trust.MEDIUM,
        because="depths and kinds of text are compared with themselves; what else changed in the "
        "traffic is not known",
        advice=_TRIMS
        if trims
        else "Look at what changed at that time: weights, adapter, traffic. "
        "Do not set a confidence threshold from the whole run.",
    )


EXCLUDED_ABOVE = Threshold(
    name="EXCLUDED_ABOVE",
    value=0.1,
    means="share of the chains ending early whose rejected token the request's own top-k or top-p "
    "excludes, that the 95% interval has to exceed",
    source="driftscope: below it, drafting within the request's limits gains less than what "
    "replays can show",
)
_REMEDIES = {
    Remedy.WIDER: "An engine that verifies a tree can use it (SGLang: --speculative-eagle-topk 4); "
    "it verifies more tokens per step, so compare its speed.",
    Remedy.RELAXED: "Relax the rule of verification only if other answers are acceptable; "
    "otherwise train the drafter.",
    Remedy.TRAINING: "Train the drafter on this traffic.",
}


@entry(
    title="What the rejected tokens came close to",
    topic=Topic.INSIDE,
    thresholds=(
        EXCLUDED_ABOVE,
        Threshold(
            name="MOST",
            value=MOST,
            means="share of the chains ending early that a remedy has to reach by its interval",
            source="driftscope: most of them; `make calibration`, table near_misses",
        ),
    ),
    need=Need[Case](
        words="recorded rejected tokens of 10 or more independent requests",
        met=lambda case: (
            (near := case.run.confidence.near_misses) is not None
            and near.close.interval is not None
        ),
    ),
)
def near_misses(case: Case) -> Finding | None:
    """The target's token may have been among the drafter's best where a chain ends early, so that a
    wider draft holds it. Or the target may have found the drafted one nearly as probable, or the
    request's own top-k or top-p may exclude it, so that it is always lost."""
    near = case.run.confidence.near_misses
    if near is None:
        return None
    spread = near.excluded.interval
    excluded = spread is not None and spread.low > EXCLUDED_ABOVE.value
    if near.remedy is Remedy.CANNOT_TELL and not excluded:
        return None
    advice = _REMEDIES.get(near.remedy, "")
    if excluded:
        advice = "Use a larger top-k and top-p, or an engine that drafts within them. " + advice
    return Finding(
        severity=Severity.MEDIUM if excluded else Severity.INFO,
        statement=near.words.rstrip("."),
        evidence={
            "ends": near.ends,
            **figure("among_best_4", near.wider[1].value, near.wider[1].interval),
            **figure("close_second", near.close.value, near.close.interval),
            **figure("excluded", near.excluded.value, spread),
        },
        confidence=Trust.MEDIUM,
        because="it is measured at the rejected tokens themselves; what a remedy costs is not",
        advice=advice.strip(),
    )
