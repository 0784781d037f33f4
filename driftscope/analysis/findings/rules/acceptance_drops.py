"""Rule about a sudden drop: acceptance falls at some moment and stays low."""

from __future__ import annotations

from datetime import UTC, datetime

from driftscope.analysis.figures.change_points import ALPHA, LEAST, ChangePoint, Changes
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import lasted, number, percent
from driftscope.analysis.statistics.interval import Interval

DROPPED_BELOW = 0.9
"""Accepted tokens per round after a change over those before it. The bound equals that of a decay
over the run: at a loss of a tenth, the best K by the cost model begins to change."""
SAME_MIX_KEEPS = 0.5
"""Share of a drop that must remain with each label's share fixed, so that the mix of requests does
not explain it."""


def acceptance_drops(case: Case) -> Finding | None:
    """Find a moment from which on requests accept clearly less than those before it."""
    changes = case.run.changes
    drop = worst_drop(changes)
    if changes is None or drop is None:
        return None
    kept, spread = _kept(drop)
    before = next(level for level in changes.levels if level.end_s == drop.time_s)
    after = next(level for level in changes.levels if level.start_s == drop.time_s)
    since_s = drop.time_s - changes.levels[0].start_s
    trust, because = judged(
        min(before.requests, after.requests), spread, below=1.0, assumed=_of_the_mix(drop)
    )
    return Finding(
        id="acceptance_drops",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Acceptance drops at a moment",
        statement=f"rounds of requests that start before {_moment(drop.time_s)} "
        f"({lasted(since_s)} into the run) yield {number(drop.before)} tokens, those after it "
        f"{number(drop.after)}: {percent(kept)} of the accepted tokens are left",
        evidence={
            "time_s": drop.time_s,
            "mean_length_before": drop.before,
            "mean_length_after": drop.after,
            "difference": drop.difference,
            **ends("difference", drop.interval),
            "difference_same_mix": drop.same_mix,
            "kept": kept,
            **ends("kept", spread),
            "p": drop.p,
            "threshold": DROPPED_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f"Look at what happened to the server around {_moment(drop.time_s)}: a deployment, "
        "other weights, templates or sampling parameters, another kind of traffic. Cut the run "
        "there with --since, by label and by context, and see which requests lost.",
        cost_tps=case.cost_of_losing(
            [level for level in changes.levels if level.start_s >= drop.time_s], drop.before
        ),
    )


def worst_drop(changes: Changes | None) -> ChangePoint | None:
    """Return the change point after which the smallest share of accepted tokens remains; None if no
    point is a drop, or if the points stand for a slope."""
    if changes is None or changes.gradual:
        return None
    drops = [point for point in changes.points if _kept(point)[0] < DROPPED_BELOW]
    return min(drops, key=lambda point: _kept(point)[0], default=None)


def _kept(point: ChangePoint) -> tuple[float, Interval | None]:
    """Return accepted tokens after the point over those before it, with the 95% interval."""
    accepted = point.before - 1.0
    if accepted <= 0:
        return 1.0, None
    spread = point.interval
    around = spread and Interval.of(1 + spread.low / accepted, 1 + spread.high / accepted)
    return 1 + point.difference / accepted, around


def _of_the_mix(drop: ChangePoint) -> list[str]:
    if drop.same_mix is None:
        return ["the labels of the requests before and after it have nothing in common"]
    if drop.same_mix <= SAME_MIX_KEEPS * drop.difference:
        return []
    return [f"with each label's share held the difference is {drop.same_mix:+.2f}"]


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


ENTRIES = (
    Entry(
        id="acceptance_drops",
        title="Acceptance drops at a moment",
        meaning="Requests that start after some moment of the run accept clearly fewer tokens than "
        "those before it, and a step says more of that than a slope. The moment is looked for.",
        thresholds=(
            Threshold(
                name="DROPPED_BELOW",
                value=DROPPED_BELOW,
                means="accepted tokens per round, after over before",
                source="driftscope: a loss that the best K begins to react to",
            ),
            Threshold(
                name="ALPHA",
                value=ALPHA,
                means="share of random orders of the same requests that may show as large a step",
                source="convention; `make calibration` shows what it comes to",
            ),
            Threshold(
                name="SAME_MIX_KEEPS",
                value=SAME_MIX_KEEPS,
                means="share of the drop that is left at the same mix of labels; with less the "
                "confidence is lower",
                source="driftscope",
            ),
        ),
        need=Need[Case](
            words=f"{2 * LEAST} requests with a round",
            met=lambda case: case.run.changes is not None,
        ),
        rule=acceptance_drops,
    ),
)
