"""Section on what acceptance goes with inside the drafter."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.closeup import Effect
from driftscope.analysis.figures.requests import MAX_CLUSTERS
from driftscope.analysis.number_words import between, number, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import capital
from driftscope.findings.rules_attention import clauses, within_request_sentences
from driftscope.metrics.acceptance import DRIFT_COST, MARGINAL, MEAN_LENGTH, WITHIN_REQUEST
from driftscope.metrics.catalogue import DEFINITIONS
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.run_series import at_depths, axis_name
from driftscope_reports.model import Picture, Section


def section(analysis: Analysis) -> Section:
    """Return what acceptance goes with inside the drafter, and the depths at which chains end."""
    runs = analysis.runs
    measures = dict.fromkeys(e.measure for run in runs if run.closeup for e in run.closeup.effects)
    scattered = [p for name in measures if (p := _scatter(runs, name))]
    return Section(
        id="effect",
        name="What goes with acceptance",
        conclusion=_conclusion(runs) if scattered else None,
        lead=within_request_sentences(runs) if scattered else None,
        pictures=(*scattered, _deaths(runs)),
        affects=("acceptance",),
        missing=None
        if scattered
        else "Drift by request is not applicable: nothing was measured inside the drafter.",
    )


def _conclusion(runs: Sequence[RunSummary]) -> str:
    """Return the clauses that have an answer, or that none has."""
    parts = [(run.label, words) for run in runs for words in clauses(run.within_request)]
    if not parts:
        return "Whether acceptance goes with anything inside the drafter cannot be told."
    named = (f"{label}: {words}" if len(runs) > 1 else words for label, words in parts)
    return f"{capital('; '.join(named))}."


def _scatter(runs: Sequence[RunSummary], measure: str) -> Picture | None:
    effects = [
        (i, run.label, e)
        for i, run in enumerate(runs)
        for e in (run.closeup.effects if run.closeup else ())
        if e.measure == measure
    ]
    if not effects:
        return None
    what = DEFINITIONS[measure]
    series = [s for i, label, e in effects for s in _series(i, label, e)]
    grouped = any(runs[i].requests > MAX_CLUSTERS for i, _, _ in effects)
    point = "group of requests" if grouped else "request"
    known = [(label if len(runs) > 1 else "", e) for _, label, e in effects]
    return Picture(
        id=f"effect-{measure.replace('.', '-')}",
        title=f"{what.title} and acceptance by {point}",
        how=f"Each point is a {point}. Requests differ in prompt, label and length, so the line is "
        "no answer to the question above.",
        chart=Chart(
            series=tuple(series),
            x_title=what.title.lower(),
            y_title="tokens per round",
            axis=Axis.NUMBER,
        ),
        definitions=(WITHIN_REQUEST, DRIFT_COST, what, MEAN_LENGTH),
        note=f"{_slopes(known)} {_left_out(known, point)}".strip() or None,
    )


def _slopes(effects: Sequence[tuple[str, Effect]]) -> str:
    known = [
        f"{_named(label)}{number(e.slope)}{between(e.interval)}"
        for label, e in effects
        if e.slope is not None
    ]
    return f"Slope of the line: {'; '.join(known)}." if known else ""


_PLURAL = {"request": "requests", "group of requests": "groups of requests"}


def _left_out(effects: Sequence[tuple[str, Effect]], point: str) -> str:
    drawn, known = sum(len(e.drift) for _, e in effects), sum(e.requests for _, e in effects)
    if drawn == known:
        return ""
    points = _PLURAL[point]
    return (
        f"{drawn:,} of {known:,} {points} are drawn, sampled evenly by drift; the line is fitted "
        "to all of them."
    )


def _series(index: int, label: str, effect: Effect) -> list[Series]:
    points = Series(
        name=label,
        kind=Kind.POINTS,
        x=effect.drift,
        y=effect.mean_length,
        colour=colour(index),
        style=index,
        notes=tuple(f"tokens per round, {n} rounds" for n in effect.rounds),
    )
    if effect.slope is None:
        return [points]
    total = sum(effect.rounds)
    x_mean = sum(x * n for x, n in zip(effect.drift, effect.rounds, strict=True)) / total
    y_mean = sum(y * n for y, n in zip(effect.mean_length, effect.rounds, strict=True)) / total
    ends = (effect.drift[0], effect.drift[-1])
    fitted = tuple(y_mean + effect.slope * (x - x_mean) for x in ends)
    trend = Series(
        name=f"{label}, trend",
        kind=Kind.LINE,
        x=ends,
        y=fitted,
        colour=colour(index),
        style=index,
        tabled=False,
    )
    return [points, trend]


def _named(label: str) -> str:
    return f"{label}, " if label else ""


def _deaths(runs: Sequence[RunSummary]) -> Picture:
    axis = axis_name(runs)
    series = []
    for i, run in enumerate(runs):
        died, spread = run.acceptance.died, run.spread.get("died", ())
        series.append(
            Series(
                name=run.label,
                kind=Kind.BAR,
                x=tuple(range(1, len(died) + 1)),
                y=tuple(n / run.rounds for n in died),
                colour=colour(i),
                pattern=PATTERNS[i % len(PATTERNS)],
                low=tuple(each.low if each else None for each in spread),
                high=tuple(each.high if each else None for each in spread),
            )
        )
    worst = []
    for run in runs:
        died = run.acceptance.died
        depth = max(range(len(died)), key=died.__getitem__)
        worst.append((depth + 1, percent(died[depth] / run.rounds)))
    return Picture(
        id="effect-deaths",
        title=f"Most chains die at {axis} {at_depths(runs, worst)} of all rounds",
        how="Each bar is the share of all rounds whose first rejected draft token was at this "
        "depth, with its 95% interval. The rest up to 100% was fully accepted.",
        chart=Chart(series=tuple(series), x_title=axis, y_title="of all rounds", unit=Unit.SHARE),
        definitions=(MARGINAL,),
    )
