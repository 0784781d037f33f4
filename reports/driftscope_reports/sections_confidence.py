"""Section on the drafter's confidence: whether it predicts acceptance."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from driftscope.analysis.figures.calibration import CalibrationAtDepth
from driftscope.analysis.number_words import NOTHING, number, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.metrics.confidence import (
    AUROC,
    BIAS,
    BRIER,
    ECE,
    RELIABILITY,
    SURVIVAL_ECE,
    TEMPERATURE,
    TOP1,
)
from driftscope.pipeline import Analysis
from driftscope_reports.charts import line
from driftscope_reports.model import Picture, Section, by_run, by_run_table, shares_by_depth

_HEAD = (
    *("run", "depth", "tokens", "confidence", "accepted", "points apart", "temperature", "AUROC"),
    *("Brier", "calibration error", "of the chain"),
)


def confidence(analysis: Analysis) -> Section:
    """Return whether confidence predicts acceptance, by depth and kind of text."""
    runs = [run for run in analysis.runs if run.confidence.calibration.by_depth]
    if not runs:
        return Section(
            id="confidence",
            name="The drafter's confidence",
            missing="Not applicable: no confidence of the drafter was recorded.",
        )
    told = [_ends(run.confidence.calibration.by_depth) for run in runs]
    drawn = []
    for i, run in enumerate(analysis.runs):
        depths = run.confidence.calibration.by_depth
        if depths:
            bands = [_around(at) for at in depths]
            name = f"{run.label}: " if len(runs) > 1 else ""
            sure, accepted = (
                [getattr(at, of) for at in depths] for of in ("confidence", "accepted")
            )
            drawn.append(line(f"{name}confidence", sure, run=i, look=2 * i))
            drawn.append(line(f"{name}accepted", accepted, run=i, look=2 * i + 1, intervals=bands))
    return Section(
        id="confidence",
        name="The drafter's confidence",
        conclusion=f"Confidence minus acceptance, from the first to the last depth: "
        f"{by_run(runs, told)}.",
        pictures=[
            Picture(
                id="confidence-calibration",
                title="Confidence and acceptance by depth",
                how="Of the draft tokens that verification reached: how sure the drafter was of "
                "them, and how many were accepted, with the 95% interval of their difference. "
                "Where the lines are apart, a confidence threshold means something else than it "
                "says.",
                chart=shares_by_depth(runs, drawn, "share"),
                definitions=(
                    *(TOP1, BIAS, TEMPERATURE, AUROC, BRIER, RELIABILITY, ECE, SURVIVAL_ECE),
                ),
            )
        ],
        below=[_by_depth(analysis), _by_kind(analysis)],
    )


def _ends(depths: Sequence[CalibrationAtDepth]) -> str:
    """Return how far confidence is off at the first and the last depth, and how well it tells
    accepted tokens from rejected ones there."""
    off = " to ".join(f"{100 * at.bias:+.0f}" for at in (depths[0], depths[-1]))
    ranks = [number(at.auroc) for at in (depths[0], depths[-1]) if at.auroc is not None]
    rank = f", AUROC {' to '.join(ranks)}" if ranks else ""
    return f"{off} points{rank}"


def _around(at: CalibrationAtDepth) -> Interval | None:
    """Return the interval of acceptance at given confidence."""
    spread = at.bias_interval
    if spread is None:
        return None
    around = Interval.of(at.confidence - spread.high, at.confidence - spread.low, spread.clusters)
    return around and around.within(0.0, 1.0)


def _by_depth(analysis: Analysis) -> Markup:
    rows = [
        [
            run.label,
            f"{at.depth}",
            f"{at.tokens:,}",
            percent(at.confidence),
            percent(at.accepted),
            _with(at.bias, at.bias_interval, scale=100.0, form="+.1f"),
            _with(at.temperature, at.temperature_interval),
            _with(at.auroc, at.auroc_interval),
            number(at.brier),
            number(at.ece),
            number(at.survival_ece),
        ]
        for run in analysis.runs
        for at in run.confidence.calibration.by_depth
    ]
    return by_run_table(
        _HEAD, rows, caption="Calibration of the drafter's confidence", runs=len(analysis.runs)
    )


def _by_kind(analysis: Analysis) -> Markup | None:
    rows = [
        [
            run.label,
            of.kind,
            f"{of.tokens:,}",
            percent(of.confidence),
            percent(of.accepted),
            _with(of.bias, of.bias_interval, scale=100.0, form="+.1f"),
            percent(of.wasted),
        ]
        for run in analysis.runs
        for of in run.confidence.calibration.by_kind
    ]
    if not rows:
        return None
    head = ("run", "kind of text", "tokens", "confidence", "accepted", "points apart", "wasted")
    return by_run_table(head, rows, caption="Calibration by kind of text", runs=len(analysis.runs))


def _with(
    value: float | None, spread: Interval | None, *, scale: float = 1.0, form: str = ".2f"
) -> str:
    if value is None:
        return NOTHING
    ends = (
        "" if spread is None else f" ({scale * spread.low:{form}} to {scale * spread.high:{form}})"
    )
    return f"{scale * value:{form}}{ends}"
