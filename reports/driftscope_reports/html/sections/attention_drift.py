"""Section parts on attention drift: attention by distance from the query, and its near shift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from driftscope.analysis.statistics.drift import (
    MARGIN,
    Answer,
    AttentionDrift,
    ByDistance,
    Estimate,
    Source,
)
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.rules_attention import attention_claim, shift_words
from driftscope.metrics.attention import NEAR_SHIFT, OWN_EXCESS, SINK
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit, depths
from driftscope_reports.drawing.palette import colour
from driftscope_reports.html.parts.run_series import about, axis_name, depth_chart, line
from driftscope_reports.markup import Markup, el
from driftscope_reports.model import Picture

_POINTS = 100
"""Points of attention in the whole of it."""
_SINK = "sink"


def claims(runs: Sequence[RunSummary]) -> list[Markup]:
    """Return one sentence per run on whether its attention drifts, grey if that cannot be told."""
    known = [(run, attention_claim(run)) for run in runs if run.attention_drift]
    return [
        el(
            "p",
            f"{about(run, runs, claim.words)}.",
            class_="missing" if claim.answer is Answer.CANNOT_TELL else None,
        )
        for run, claim in known
    ]


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return attention by distance of each run that recorded it, and the shift of all runs by
    depth, in matched rounds for a run without masses by distance."""
    known = [(i, run, run.attention_drift) for i, run in enumerate(runs) if run.attention_drift]
    out = [
        _by_distance(i, run, drift, runs) for i, run, drift in known if drift.distances is not None
    ]
    return [*out, *_shifts(known, runs)]


def _by_distance(
    index: int, run: RunSummary, drift: AttentionDrift, runs: Sequence[RunSummary]
) -> Picture:
    masses = drift.distances
    assert masses is not None  # noqa: S101  as `pictures` looks at it
    names = (*_names(masses.edges), _SINK)
    expected = Series(
        name=f"{axis_name([run])} 1, expected at every {axis_name([run])}",
        kind=Kind.DASHED,
        x=names,
        y=(*masses.first, masses.sink[0]),
        colour="ink",
    )
    last = Series(
        name=f"{axis_name([run])} {drift.depths}",
        kind=Kind.BAR,
        x=names,
        y=(*masses.last, masses.sink[1]),
        colour=colour(index),
    )
    return Picture(
        id=f"distance-{index}",
        title=about(run, runs, shift_words(drift)),
        how="Each bar is the share of attention, at the last depth, on tokens that lie this many "
        f"places before the query. The dashed line is the same at {axis_name([run])} 1: a drafter "
        "without drift stays on it, however much it prefers recent tokens.",
        chart=Chart(
            series=(last, expected),
            x_title="places before the query",
            y_title="share of attention",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
        ),
        note=_variation(masses),
        definitions=(NEAR_SHIFT, SINK),
    )


def _names(edges: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the bins: "3", "8 to 15", "64 on"."""
    inner = (
        f"{first}" if beyond == first + 1 else f"{first} to {beyond - 1}"
        for first, beyond in pairwise(edges)
    )
    return (*inner, f"{edges[-1]} on")


def _variation(masses: ByDistance) -> str:
    return (
        f"Between the two, {_POINTS * masses.variation[-1]:.1f} points of the attention lie "
        "elsewhere (total variation)."
    )


def _shifts(
    known: Sequence[tuple[int, RunSummary, AttentionDrift]], runs: Sequence[RunSummary]
) -> list[Picture]:
    drawn = [
        (i, run, drift, values) for i, run, drift in known if any(values := _estimates_of(drift))
    ]
    if not drawn:
        return []
    series = [_line(i, run, values) for i, run, _, values in drawn]
    longest = max(len(values) for *_, values in drawn)
    series += [_margin(longest, sign) for sign in (1, -1)]
    matched = [drift for *_, drift, _ in drawn if drift.source is Source.MATCHED]
    return [
        Picture(
            id="near-shift",
            title=f"Attention that moves to near tokens, by {axis_name(runs)}",
            how="Points of attention on the nearest places beyond those at the first depth, with "
            "95% intervals. Between the dashed lines there is no drift; an interval above the "
            "upper one at the last depth is drift.",
            chart=depth_chart(
                [run for _, run, *_ in drawn], series, "points of attention", level=0.0
            ),
            note=_MATCHED if matched else None,
            definitions=(NEAR_SHIFT, OWN_EXCESS),
        )
    ]


_MATCHED = (
    "A run without attention mass by distance has its own excess here, in rounds within its first "
    "output tokens: record masses by distance to have every round count."
)


def _estimates_of(drift: AttentionDrift) -> Sequence[Estimate | None]:
    return drift.near_shift if drift.source is Source.DISTANCES else drift.own_excess


def _line(index: int, run: RunSummary, estimates: Sequence[Estimate | None]) -> Series:
    values = [_POINTS * each.value if each else math.nan for each in estimates]
    spreads = [each.interval if each else None for each in estimates]
    return replace(
        line(index, run.label, values),
        low=tuple(_POINTS * each.low if each else None for each in spreads),
        high=tuple(_POINTS * each.high if each else None for each in spreads),
    )


def _margin(longest: int, sign: int) -> Series:
    level = sign * _POINTS * MARGIN
    return Series(
        name=f"margin, {level:+g} points",
        kind=Kind.DASHED,
        x=depths(range(longest)),
        y=(level,) * longest,
        colour="soft",
        tabled=False,
    )
