"""Findings about two runs: the comparison of a run with its reference."""

from __future__ import annotations

from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    MARGINAL,
    Comparison,
    Difference,
    accepts_less,
)
from driftscope.analysis.figures.request_pairing import UNPAIRED
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
"""Marginal acceptance: runs are called alike where no larger difference is compatible with them. At
K = 4 five points at every depth are a fifth of a token per round, less than what the choice of K by
the cost model reacts to."""


def runs_part(case: Case) -> Finding | None:
    """A run's acceptance by depth differs from that of the run it is held against."""
    found = case.comparison
    return _apart(case, found) if found is not None and found.parts_from is not None else None


def runs_alike(case: Case) -> Finding | None:
    """No depth's acceptance differs, and how large a difference may still be is known."""
    found = case.comparison
    if found is None or not found.tested or found.parts_from is not None or found.bound is None:
        return None
    return _alike(found, found.bound)


def _apart(case: Case, found: Comparison) -> Finding:
    suspects = suspects_of(case, loss_against(found, case.run))
    by_depth, depth = found.at(MARGINAL), found.parts_from or 1
    here, last = by_depth[depth - 1], by_depth[-1]
    better = found.first if accepts_less(found) else found.second
    trust, because = _trust(found, here)
    since = f"after depth {depth - 1}" if depth > 1 else "from depth 1 on"
    return Finding(
        id="runs_part",
        severity=Severity.MEDIUM,
        runs=(found.first, found.second),
        title=f"Acceptance parts {since}",
        statement=f"it differs at {_depths(found)}: at depth {depth} it is {_both(found, here)}"
        f"{_points(here)}"
        + (f"; at depth {last.depth} it is {_both(found, last)}" if last is not here else ""),
        evidence={
            "depth": depth,
            "depths_apart": len(found.apart_at),
            "marginal_first_run": here.first,
            "marginal_second_run": here.second,
            "last_depth": last.depth,
            "last_first_run": last.first,
            "last_second_run": last.second,
            "length_difference": found.at(LENGTH)[0].difference,
            "difference": here.difference,
            **ends("difference", here.interval),
            "p": here.p_adjusted,
            "threshold": ALPHA,
        },
        confidence=trust,
        because=because,
        advice=f"{better} accepts more over all depths. {_same_prompts(found)}",
        causes=suspects.causes,
        ruled_out=suspects.ruled_out,
    )


def _trust(found: Comparison, here: Difference) -> tuple[Trust, str]:
    unpaired = found.pairing == UNPAIRED
    assumed = ["the two runs may have answered different prompts"] if unpaired else []
    below = 0.0 if here.difference < 0 else None
    above = 0.0 if here.difference > 0 else None
    return judged(min(found.requests), here.interval, above=above, below=below, assumed=assumed)


def _same_prompts(found: Comparison) -> str:
    if found.pairing != UNPAIRED:
        return f"Both answered the same prompts: {count(found.pairs, 'pair')}, by {found.pairing}."
    return (
        "The runs did not answer the same prompts, or not in a way that shows: make sure that they "
        "did before you draw a conclusion."
    )


def _depths(found: Comparison) -> str:
    """The depths that differ: "depth 3", "depths 1 to 4 and 6"."""
    noun = "depth" if len(found.apart_at) == 1 else "depths"
    return f"{noun} {runs_of_numbers(found.apart_at)}"


def _both(found: Comparison, at: Difference) -> str:
    return f"{percent(at.first)} ({found.first}) against {percent(at.second)} ({found.second})"


def _points(at: Difference) -> str:
    """The difference with its interval."""
    if at.interval is None:
        return ""
    low, high = 100 * at.interval.low, 100 * at.interval.high
    return (
        f", a difference of {100 * at.difference:+.1f} points (95% interval {low:+.1f} to "
        f"{high:+.1f})"
    )


def _alike(found: Comparison, bound: float) -> Finding:
    near = bound <= ALIKE_WITHIN
    more = round(min(found.requests) * (bound / ALIKE_WITHIN) ** 2)
    return Finding(
        id="runs_alike",
        severity=Severity.INFO,
        runs=(found.first, found.second),
        title="The runs accept alike" if near else "No depth tells the runs apart",
        statement=f"{largest(bound)}, at any of "
        f"{count(len(found.at(MARGINAL)), 'depth')} (95 %, all depths together)",
        evidence={
            "depths": len(found.at(MARGINAL)),
            "bound": bound,
            "threshold": ALIKE_WITHIN,
        },
        confidence=Trust.HIGH if near else Trust.LOW,
        because=f"{count(min(found.requests), 'request')} each"
        + ("" if near else ", and a difference that matters may hide in them"),
        advice="Nothing to do."
        if near
        else f"If you expected a difference, record about {more:,} requests in each run, of the "
        f"same prompts: then one above {100 * ALIKE_WITHIN:.0f} points would show.",
    )


_NEED = Need[Case](
    words=f"a second run; {LEAST} requests or more in each",
    met=lambda case: case.comparison is not None and case.comparison.tested,
)
_ALPHA = Threshold(
    name="ALPHA",
    value=ALPHA,
    means="p-value of a depth, adjusted for all depths: the largest |t| of them, against runs with "
    "each pair's sides exchanged at random (unpaired: with requests dealt anew)",
    source="convention; `make calibration` shows what it comes to",
)

ENTRIES = (
    Entry(
        id="runs_part",
        title="Acceptance parts after a depth",
        meaning="At some depth, named, two runs accept differently. The test is that of "
        "`driftscope compare`: all depths jointly, in pairs where both answered the same prompts. "
        "A run that accepts nothing is compared like any other.",
        thresholds=(_ALPHA,),
        need=_NEED,
        rule=runs_part,
    ),
    Entry(
        id="runs_alike",
        title="No depth tells the runs apart",
        meaning="No depth differs by that test. It states the largest difference that the runs are "
        "still compatible with, and calls them alike only where that is small.",
        thresholds=(
            Threshold(
                name="ALIKE_WITHIN",
                value=ALIKE_WITHIN,
                means="largest difference in marginal acceptance of runs that are called alike, by "
                "the simultaneous 95% interval",
                source="driftscope: a fifth of a token per round at K = 4",
            ),
        ),
        need=_NEED,
        rule=runs_alike,
    ),
)
