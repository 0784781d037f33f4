"""The three criteria of the published effect, stated before any run, and their answers.

(a) sink: EAGLE-3's attention on the first token is at least 0.2 at depth 1 and, at depth 8, below
    half of that; EAGLE-3.1 keeps at least 0.8 of its own;
(b) template: EAGLE-3 loses more acceptance length under perturbed templates than EAGLE-3.1, and the
    interval of the ratio of both ratios excludes 1;
(c) drift: the recency-matched null of the analysis says "drift" of EAGLE-3 and "no drift" of
    EAGLE-3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.statistics.drift import Answer
from driftscope_lab.phenomenon.conditions import AS_TRAINED
from driftscope_lab.phenomenon.estimates import Estimate, of, robustness
from driftscope_lab.phenomenon.figures import Sums

LEAST_SINK = 0.2
LOST_BELOW = 0.5
KEPT_ABOVE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One drafter's run of one seed: sums by condition, and the analysis's answer to whether its
    attention drifts in the trained form."""

    sums: dict[str, Sums]
    drift: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One criterion of one seed: whether it is met, and the figures that decide."""

    name: str
    met: bool
    figures: str


def judged(eagle3: Recorded, eagle31: Recorded) -> tuple[Criterion, ...]:
    """Return the three criteria of one seed."""
    return _sink(eagle3, eagle31), _template(eagle3, eagle31), _drift(eagle3, eagle31)


def _sink(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    first = of(eagle3.sums[AS_TRAINED].by_depth("sink"))
    lost, kept = (of(one.sums[AS_TRAINED].sink_kept()) for one in (eagle3, eagle31))
    met = first.low >= LEAST_SINK and lost.high < LOST_BELOW and kept.low >= KEPT_ABOVE
    figures = (
        f"EAGLE-3 has {first.words()} at depth 1 and keeps {lost.words()} of it at the last depth, "
        f"EAGLE-3.1 keeps {kept.words()}"
    )
    return Criterion(name="(a) sink", met=met, figures=figures)


def _template(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    ratio: Estimate = robustness(eagle3.sums, eagle31.sums)
    return Criterion(
        name="(b) template",
        met=ratio.low > 1.0,
        figures=f"EAGLE-3.1 keeps {ratio.words()} times the share that EAGLE-3 keeps",
    )


def _drift(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    return Criterion(
        name="(c) drift",
        met=eagle3.drift is Answer.DRIFT and eagle31.drift is Answer.NO_DRIFT,
        figures=f"the analysis says {_said(eagle3)} of EAGLE-3 and {_said(eagle31)} of EAGLE-3.1",
    )


def _said(one: Recorded) -> str:
    return f'"{one.drift}"' if one.drift else "nothing"
