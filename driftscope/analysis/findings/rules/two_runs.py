"""Findings about two runs: the comparison of a run with its reference."""

from __future__ import annotations

from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    MARGINAL,
    Comparison,
    Difference,
    accepts_less,
)
from driftscope.analysis.figures.side import UNPAIRED
from driftscope.analysis.findings.acceptance_losses import loss_against
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.suspects import suspects_of
from driftscope.analysis.number_words import count, largest, percent, runs_of_numbers
from driftscope.analysis.statistics.joint_difference import LEAST
from driftscope.analysis.statistics.multiple_comparisons import ALPHA

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

ENTRIES = (
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
