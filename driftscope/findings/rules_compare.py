"""Circumstances other than drafter and K in which two runs differ, and which may explain a
difference."""

from __future__ import annotations

import math

from driftscope.analysis.compare import (
    LENGTH,
    MARGINAL,
    Comparison,
    Difference,
    accepts_less,
)
from driftscope.analysis.figures.rounds import UNPAIRED
from driftscope.analysis.number_words import (
    count,
    largest,
    listed,
    number,
    percent,
    runs_of_numbers,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.permutation import ALPHA, LEAST
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import Case, Entry, Need, Threshold
from driftscope.findings.causes import (
    NOTHING_BELOW,
    accepted_once,
    judge,
    loss_against,
    none_accepted,
    suspects_of,
)
from driftscope.findings.finding import Answer, Claim, Finding, Severity, Topic, Trust, ends, judged

CHOSEN = ("drafter", "K")
"""Names of the ways in which runs differ on purpose if drafters or K are compared."""
SAME_LOAD = 1.2
"""Largest ratio of two runs' mean batch sizes at which their load counts as equal: a faster server
finishes its requests sooner, so that equal load need not mean equal batches."""


def confounders(case: Case) -> list[str]:
    """Return what else differs between a run and the one that it is compared with; "prompts" if
    their rounds cannot be compared."""
    comparison = case.comparison
    if comparison is None:
        return ["prompts"]
    others = [each for each in comparison.unlike if each.split(" ")[0] not in CHOSEN]
    load = None if case.reference is None else _load(case.reference, case.run)
    return [*others, *([load] if load else [])]


def _load(first: RunSummary, second: RunSummary) -> str | None:
    """Return in words how the loads differ; None if they are alike or not known."""
    batches = [_mean_batch(run) for run in (first, second)]
    if batches[0] is None or batches[1] is None:
        return None
    ratio = max(batches[0], batches[1]) / min(batches[0], batches[1])
    return (
        f"load (batches of {batches[0]:.1f} against {batches[1]:.1f})"
        if ratio > SAME_LOAD
        else None
    )


def _mean_batch(run: RunSummary) -> float | None:
    steps = sum(cell.steps for cell in run.cells)
    return sum(cell.steps * cell.batch for cell in run.cells) / steps if steps else None


def doubt(others: list[str]) -> str:
    """Return a clause about the confounders; "" if there are none."""
    return f", but the runs also differ in {listed(others)}" if others else ""


def to_match(others: list[str]) -> str:
    """Return what to record so that nothing but drafter and K differs."""
    return f"record both runs with the same {listed([each.split(' ')[0] for each in others])}"


ALIKE_WITHIN = 0.05
"""Difference in marginal acceptance: runs accept alike if no larger difference is compatible with
them. At K = 4, five points at every depth are a fifth of a token per round, less than the choice of
K by the cost model reacts to."""


def runs_part(case: Case) -> Finding | None:
    """Find that a run's acceptance by depth differs from that of the run it is compared with."""
    comparison = case.comparison
    if comparison is None or comparison.parts_from is None:
        return None
    return _apart(case, comparison)


def runs_alike(case: Case) -> Finding | None:
    """Find that acceptance differs at no depth, with the largest difference that is still
    possible."""
    comparison = case.comparison
    if (
        comparison is None
        or not comparison.tested
        or comparison.parts_from is not None
        or comparison.bound is None
    ):
        return None
    return _alike(comparison, comparison.bound)


def _apart(case: Case, comparison: Comparison) -> Finding:
    suspects = suspects_of(case, loss_against(comparison, case.run))
    by_depth, depth = comparison.at(MARGINAL), comparison.parts_from or 1
    here, last = by_depth[depth - 1], by_depth[-1]
    better = comparison.first if accepts_less(comparison) else comparison.second
    trust, because = _trust(comparison, here)
    return Finding(
        id="runs_part",
        severity=Severity.MEDIUM,
        runs=(comparison.first, comparison.second),
        title=f"Acceptance differs from depth {depth} on",
        statement=f"it differs at {_depths(comparison)}: at depth {depth} it is "
        f"{_both(comparison, here)}{_points(here)}"
        + (f"; at depth {last.depth} it is {_both(comparison, last)}" if last is not here else ""),
        evidence={
            "depth": depth,
            "depths_apart": len(comparison.apart_at),
            "marginal_first_run": here.first,
            "marginal_second_run": here.second,
            "last_depth": last.depth,
            "last_first_run": last.first,
            "last_second_run": last.second,
            "length_difference": comparison.at(LENGTH)[0].difference,
            "difference": here.difference,
            **ends("difference", here.interval),
            "p": here.p_adjusted,
            "threshold": ALPHA,
        },
        confidence=trust,
        because=because,
        advice=f"{better} accepts more over all depths. {_same_prompts(comparison)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
    )


def _trust(comparison: Comparison, here: Difference) -> tuple[Trust, str]:
    unpaired = comparison.pairing == UNPAIRED
    assumed = ["the two runs may have answered different prompts"] if unpaired else []
    below = 0.0 if here.difference < 0 else None
    above = 0.0 if here.difference > 0 else None
    return judged(
        min(comparison.requests), here.interval, above=above, below=below, assumed=assumed
    )


def _same_prompts(comparison: Comparison) -> str:
    if comparison.pairing != UNPAIRED:
        pairs = count(comparison.pairs, "pair")
        return f"Both answered the same prompts: {pairs}, by {comparison.pairing}."
    return (
        "The runs did not answer the same prompts, as far as the traces show: make sure that they "
        "did before you draw a conclusion."
    )


def _depths(comparison: Comparison) -> str:
    """Return the depths that differ: "depth 3", "depths 1 to 4 and 6"."""
    noun = "depth" if len(comparison.apart_at) == 1 else "depths"
    return f"{noun} {runs_of_numbers(comparison.apart_at)}"


def _both(comparison: Comparison, at: Difference) -> str:
    return (
        f"{percent(at.first)} ({comparison.first}) and {percent(at.second)} ({comparison.second})"
    )


def _points(at: Difference) -> str:
    """Return the difference with its interval, in words; "" without an interval."""
    if at.interval is None:
        return ""
    low, high = 100 * at.interval.low, 100 * at.interval.high
    return (
        f", a difference of {100 * at.difference:+.1f} points (95% interval {low:+.1f} to "
        f"{high:+.1f})"
    )


def _alike(comparison: Comparison, bound: float) -> Finding:
    near = bound <= ALIKE_WITHIN
    more = round(min(comparison.requests) * (bound / ALIKE_WITHIN) ** 2)
    return Finding(
        id="runs_alike",
        severity=Severity.INFO,
        runs=(comparison.first, comparison.second),
        title="The runs accept alike" if near else "Acceptance differs at no depth",
        statement=f"{largest(bound)}, at any of "
        f"{count(len(comparison.at(MARGINAL)), 'depth')} (95 %, all depths together)",
        evidence={
            "depths": len(comparison.at(MARGINAL)),
            "bound": bound,
            "threshold": ALIKE_WITHIN,
        },
        confidence=Trust.HIGH if near else Trust.LOW,
        because=f"{count(min(comparison.requests), 'request')} each"
        + ("" if near else ", too few to exclude a difference that matters"),
        advice="Nothing to do."
        if near
        else f"If you expected a difference, record about {more:,} requests of the same prompts in "
        f"each run: a difference above {100 * ALIKE_WITHIN:.0f} points would then be detected.",
    )


_NEED = Need[Case](
    words=f"a second run; {LEAST} requests or more in each",
    met=lambda case: case.comparison is not None and case.comparison.tested,
)
_ALPHA = Threshold(
    name="ALPHA",
    value=ALPHA,
    means="p-value of a depth, adjusted for all depths: the largest |t| is compared with its "
    "distribution when the two sides of each pair are exchanged at random (unpaired: when requests "
    "are assigned to the runs at random)",
    source="convention; `make calibration` measures the resulting false-positive rate",
)

TWO_RUNS_ENTRIES = (
    Entry(
        id="runs_part",
        title="Acceptance differs from some depth on",
        meaning="Two runs accept differently from the named depth on. The test is that of "
        "`driftscope compare`: it covers all depths jointly, and pairs requests if both runs "
        "answered the same prompts. A run that accepts nothing is compared like any other.",
        thresholds=(_ALPHA,),
        need=_NEED,
        rule=runs_part,
    ),
    Entry(
        id="runs_alike",
        title="Acceptance differs at no depth",
        meaning="No depth differs by that test. The finding states the largest difference that is "
        "still compatible with the runs, and calls them alike only if that is small.",
        thresholds=(
            Threshold(
                name="ALIKE_WITHIN",
                value=ALIKE_WITHIN,
                means="largest difference in marginal acceptance, by the simultaneous 95% "
                "interval, at which runs are called alike",
                source="driftscope: a fifth of a token per round at K = 4",
            ),
        ),
        need=_NEED,
        rule=runs_alike,
    ),
)


NO_WORSE = 0.05
"""Equivalence margin: an acceptance length that is surely less than this share below the other
run's is no worse. It is the margin that docs/check.md proposes for `no_worse`."""
MOST_MORE = 100.0
"""Largest factor by which more requests are proposed: beyond it no figure is given."""


def acceptance(case: Case) -> Claim:
    """Return whether acceptance is no worse than in the run that it is compared with; without one,
    the acceptance length as a figure."""
    run = case.run
    if run.acceptance.marginal[0] < NOTHING_BELOW:
        return _dead(run)
    compared = None if case.comparison is None else _relative(case.comparison)
    if case.comparison is None or compared is None:
        return _figure(run)
    return _compared(case, case.comparison, *compared)


def _relative(comparison: Comparison) -> tuple[float, Interval] | None:
    """Return the change of the acceptance length as a share of the reference's, with its interval;
    None without an interval."""
    at = comparison.at(LENGTH)[0]
    if at.interval is None or not at.first > 0:
        return None
    interval = Interval.of(at.interval.low / at.first, at.interval.high / at.first)
    return None if interval is None else (at.difference / at.first, interval)


def _compared(case: Case, comparison: Comparison, change: float, interval: Interval) -> Claim:
    others, change_is = confounders(case), no_worse(interval)
    answer = Answer.CANNOT_TELL if others else change_is
    other = comparison.first
    at = comparison.at(LENGTH)[0]
    verb = {
        Answer.YES: f"acceptance is {'better than' if interval.low > 0 else 'no worse than'}",
        Answer.NO: "acceptance is worse than",
        Answer.CANNOT_TELL: "it cannot be told whether acceptance is worse than",
    }[change_is]
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=case.run.label,
        question=f"Is the acceptance length at most {percent(NO_WORSE)} below the other run's?",
        answer=answer,
        sentence=f"{verb} {other}'s: {number(at.second)} tokens per round, compared with "
        f"{number(at.first)} ({100 * change:+.0f}%, {100 * interval.low:+.0f}% to "
        f"{100 * interval.high:+.0f}%){doubt(others)}",
        estimate=change,
        interval=interval,
        reference=other,
        record=_wanted(comparison, change, interval, others)
        if answer is Answer.CANNOT_TELL
        else "",
    )


def no_worse(change: Interval) -> Answer:
    """Return whether a relative change is surely above, or surely below, minus NO_WORSE."""
    if change.low > -NO_WORSE:
        return Answer.YES
    return Answer.NO if change.high < -NO_WORSE else Answer.CANNOT_TELL


def _wanted(comparison: Comparison, change: float, interval: Interval, others: list[str]) -> str:
    return to_match(others) if others else _more(comparison, change, interval)


def _more(comparison: Comparison, change: float, interval: Interval) -> str:
    half, away = (interval.high - interval.low) / 2, abs(change + NO_WORSE)
    factor = math.inf if not away else (half / away) ** 2
    if factor > MOST_MORE:
        return "record more requests of the same prompts"
    wanted = math.ceil(min(comparison.requests) * max(factor, 1.0) / 10) * 10
    return f"record about {wanted:,} requests of the same prompts in each run"


def _figure(run: RunSummary) -> Claim:
    spread, length = run.acceptance.mean_length_interval, run.acceptance.mean_length
    around = "no 95% interval" if spread is None else f"{spread.low:.2f} to {spread.high:.2f}"
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="How many tokens does a round yield?",
        answer=Answer.FIGURE,
        sentence=f"a round yields {number(length)} tokens ({around}) of at most {run.k + 1}",
        estimate=length,
        interval=spread,
    )


def _dead(run: RunSummary) -> Claim:
    sure = judge(run)[0] is not Trust.LOW
    little = "nothing" if not accepted_once(run) else "next to nothing"
    cost = "speculation costs time and gives nothing" if sure else "too few rounds to be sure"
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="Is any draft token accepted?",
        answer=Answer.NO if sure else Answer.CANNOT_TELL,
        sentence=f"{little} is accepted: {cost} ({none_accepted(run)})",
        estimate=run.acceptance.marginal[0],
        record="" if sure else "record more rounds to be sure",
    )
