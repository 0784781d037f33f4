"""Section on whether drift costs acceptance."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.closeup.effect import ENOUGH_REQUESTS, Effect
from driftscope.analysis.figures.request_codes import MAX_CLUSTERS
from driftscope.analysis.number_words import between, listed, number, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.association import DRIFT_COST
from driftscope.metrics.catalogue import DEFINITIONS
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.run_series import at_depths, axis_name
from driftscope_reports.html.parts.section import Picture, Section, Size, sized


def section(analysis: Analysis) -> Section:
    """Return drift against acceptance by request, and the depths at which chains end."""
    runs = analysis.runs
    measures = dict.fromkeys(e.measure for run in runs if run.closeup for e in run.closeup.effects)
    scattered = [p for name in measures if (p := _scatter(runs, name))]
    return Section(
        id="effect",
        name="Does drift cost acceptance?",
        lead=_lead(runs) if scattered else None,
        pictures=tuple(sized(p, Size.SMALL) for p in (*scattered, _deaths(runs))),
        affects=("acceptance",),
        missing=None
        if scattered
        else "Drift by request is not applicable: nothing was measured inside the drafter.",
    )


def _lead(runs: Sequence[RunSummary]) -> str:
    answers = [_answer(run) for run in runs]
    named = [f"{run.label}: {said}" for run, said in zip(runs, answers, strict=True)]
    parts = named if len(set(answers)) > 1 else answers[:1]
    return (
        f"{' '.join(parts)} This compares requests of one run with each other: where all of "
        "them drift alike, it shows nothing, and drift may still cost all of them."
    )


def _answer(run: RunSummary) -> str:
    known = [e for e in run.closeup.effects if e.interval] if run.closeup else []
    clear = [e for e in known if e.interval and e.interval.high < 0]
    if clear:
        names = listed([DEFINITIONS[e.measure].title.lower() for e in clear])
        return f"Yes: requests with more of it are accepted less ({names})."
    if not known:
        return "Not known: too few requests, or all drift alike."
    return "Not shown: requests that drift more are not accepted less by more than chance."


def _scatter(runs: Sequence[RunSummary], measure: str) -> Picture | None:
    found = [
        (i, run.label, e)
        for i, run in enumerate(runs)
        for e in (run.closeup.effects if run.closeup else ())
        if e.measure == measure
    ]
    if not found:
        return None
    what = DEFINITIONS[measure]
    series = [s for i, label, e in found for s in _series(i, label, e)]
    grouped = any(runs[i].requests > MAX_CLUSTERS for i, _, _ in found)
    point = "group of requests" if grouped else "request"
    known = [(label if len(runs) > 1 else "", e) for _, label, e in found]
    return Picture(
        id=f"effect-{measure.replace('.', '-')}",
        title=_title(what.title, known),
        how=f"Each point is a {point}. If the line falls, requests that drift more are accepted "
        "less; if it is flat, drift does not tell requests apart.",
        chart=Chart(
            series=tuple(series),
            x_title=what.title.lower(),
            y_title="tokens per round",
            axis=Axis.NUMBER,
        ),
        definitions=(DRIFT_COST, what, MEAN_LENGTH),
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
    return f"{drawn:,} of {known:,} {points} are drawn, evenly taken by drift; the line is of all."


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


def _title(title: str, effects: Sequence[tuple[str, Effect]]) -> str:
    seen = [_seen(e) for _, e in effects]
    if len(effects) > 1 and len(set(seen)) == 1:
        return f"{title}: {seen[0]} in {'both' if len(effects) == 2 else 'all'}"
    said = zip(effects, seen, strict=True)
    return f"{title}: {'; '.join(f'{_named(label)}{words}' for (label, _), words in said)}"


def _named(label: str) -> str:
    return f"{label}, " if label else ""


def _seen(effect: Effect) -> str:
    if effect.slope is None or effect.interval is None:
        return f"no estimate (fewer than {ENOUGH_REQUESTS} requests, or all drift alike)"
    if not effect.interval.excludes_zero():
        return "no clear relation to acceptance"
    more = "more" if effect.slope > 0 else "fewer"
    return f"{number(abs(effect.slope))} {more} tokens per round for each unit"


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
        how="Each bar is the share of all rounds whose first wrong guess stood at this depth, "
        "with its 95% interval. What is missing to 100% was accepted whole.",
        chart=Chart(series=tuple(series), x_title=axis, y_title="of all rounds", unit=Unit.SHARE),
        definitions=(MARGINAL,),
    )
