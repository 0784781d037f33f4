"""Section on where in the workload drift and losses occur."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.figures.requests import UNLABELLED
from driftscope.analysis.figures.results import Segment
from driftscope.analysis.number_words import milliseconds, number, percent, times
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.attention import SELF
from driftscope.metrics.definition import Definition
from driftscope.metrics.hidden import GROWTH
from driftscope.metrics.latency import TPOT
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.tables import by_run_table
from driftscope_reports.html.sections import change_points, circumstances
from driftscope_reports.markup import Markup
from driftscope_reports.model import Picture, Section

MAX_SEGMENTS = 40
"""Most segments of a run in the table, those with most rounds; more are in the JSON report."""
_DRAWN = 12
"""Most segments in a picture: more cannot be distinguished."""
_CUT = "split by"
_HEAD = (
    "run",
    _CUT,
    "requests",
    "rounds",
    "acceptance length",
    "accepted to depth K",
    "growth of hidden state",
    "attention on the chain, depth K",
    "time per token",
    "time to first token",
)


def section(analysis: Analysis) -> Section:
    """Return small pictures by circumstance and label, and a table of labels."""
    runs = analysis.runs
    labelled = any(segment.label != UNLABELLED for run in runs for segment in run.segments)
    over_time = [p] if (p := change_points.picture(runs)) else []
    rest = sum(max(len(run.segments) - MAX_SEGMENTS, 0) for run in runs)
    drawn = [p for what in _PICTURES if (p := _picture(runs, *what))] if labelled else []
    missing = f"{rest:,} smaller segments are left out." if rest else None
    return Section(
        id="where",
        name="Where",
        lead=_lead(runs) if labelled else None,
        pictures=(*drawn, *circumstances.pictures(runs), *over_time),
        body=_table(runs) if labelled else None,
        affects=("segments",),
        missing=missing if labelled else _NO_LABEL,
    )


_NO_LABEL = (
    "By label: not applicable, because no request has a workload label. Give requests a label "
    "(extra_args driftscope_label, or the header X-Driftscope-Label) to see which part of the "
    "traffic drifts."
)


_PICTURES: tuple[tuple[str, str, str, Unit, Definition], ...] = (
    ("mean_length", "Acceptance length", "tokens per round", Unit.NUMBER, MEAN_LENGTH),
    ("growth", "Growth of the hidden state", "times", Unit.NUMBER, GROWTH),
    ("self_mass", "Attention on the chain at the last depth", "share", Unit.SHARE, SELF),
    ("tpot_s", "Time per output token", "milliseconds", Unit.MS, TPOT),
)


def _picture(
    runs: Sequence[RunSummary], field: str, words: str, y_title: str, unit: Unit, what: Definition
) -> Picture | None:
    labels = _largest(runs)
    series = []
    for i, run in enumerate(runs):
        by_label = {segment.label: getattr(segment, field) for segment in run.segments}
        values = [by_label.get(label) for label in labels]
        if any(v is not None for v in values):
            scaled = [v if v is None or unit is not Unit.MS else 1000 * v for v in values]
            spreads = _spreads(run, labels) if field == "mean_length" else []
            series.append(
                Series(
                    name=run.label,
                    kind=Kind.BAR,
                    x=tuple(labels),
                    y=tuple(scaled),
                    colour=colour(i),
                    pattern=PATTERNS[i % len(PATTERNS)],
                    low=tuple(s.low if s else None for s in spreads),
                    high=tuple(s.high if s else None for s in spreads),
                )
            )
    if not series:
        return None
    return Picture(
        id=f"where-{field.removesuffix('_s').replace('_', '-')}",
        title=_title(words, series, unit, len(runs)),
        how=f"One bar per {_cut(runs)}. Differences between bars of one run come from the workload "
        "(or, with few requests, from chance), not from the drafter.",
        chart=Chart(
            series=tuple(series),
            x_title=_cut(runs),
            y_title=y_title,
            axis=Axis.CATEGORY,
            unit=unit,
        ),
        definitions=(what,),
    )


def _spreads(run: RunSummary, labels: Sequence[str]) -> list[Interval | None]:
    known = {segment.label: segment.mean_length_interval for segment in run.segments}
    return [known.get(label) for label in labels]


def _cut(runs: Sequence[RunSummary]) -> str:
    """Return the criterion by which the runs were split."""
    ways = dict.fromkeys(segment.by for run in runs for segment in run.segments)
    return " or ".join("workload label" if way == "label" else way for way in ways)


def _largest(runs: Sequence[RunSummary]) -> list[str]:
    rounds: dict[str, int] = {}
    for run in runs:
        for segment in run.segments:
            rounds[segment.label] = rounds.get(segment.label, 0) + segment.rounds
    most = sorted(rounds, key=lambda label: (-rounds[label], label))[:_DRAWN]
    return sorted(most)


def _title(words: str, series: Sequence[Series], unit: Unit, runs: int) -> str:
    spans = []
    for s in series:
        known = [(y, str(x)) for x, y in zip(s.x, s.y, strict=True) if y is not None]
        if len(known) > 1:
            spans.append((max(known)[0] - min(known)[0], s.name, min(known), max(known)))
    if not spans:
        return words
    _, run, low, high = max(spans)
    if runs < 2 and _say(low[0], unit) == _say(high[0], unit):
        return f"{words}: {_say(low[0], unit)} everywhere"
    ends = [f"{_say(value, unit)} on {label}" for value, label in (low, high)]
    return f"{words}: {f'{run}, ' if runs > 1 else ''}{', '.join(ends)}"


def _say(value: float, unit: Unit) -> str:
    if unit is Unit.SHARE:
        return percent(value)
    return f"{value:.2f} ms" if unit is Unit.MS else number(value)


def _lead(runs: Sequence[RunSummary]) -> str:
    spans = []
    for run in runs:
        known = [(s.mean_length, s.label) for s in run.segments if s.mean_length is not None]
        if len(known) > 1:
            spans.append((max(known)[0] - min(known)[0], run.label, min(known), max(known)))
    if not spans:
        return "The run split by workload label."
    _, label, low, high = max(spans)
    name = f"{label}: rounds" if len(runs) > 1 else "Rounds"
    return f"{name} yield {number(low[0])} tokens on {low[1]} and {number(high[0])} on {high[1]}."


def _table(runs: Sequence[RunSummary]) -> Markup:
    rows = [
        _row(run, segment)
        for run in runs
        for segment in sorted(run.segments, key=lambda s: (-s.rounds, s.label))[:MAX_SEGMENTS]
    ]
    head = [_cut(runs) if name == _CUT else name for name in _HEAD]
    return by_run_table(head, rows, words=2, caption="Segments of the workload", runs=len(runs))


def _row(run: RunSummary, segment: Segment) -> list[str]:
    return [
        run.label,
        segment.label,
        f"{segment.requests:,}",
        f"{segment.rounds:,}",
        number(segment.mean_length),
        percent(segment.reach),
        times(segment.growth),
        percent(segment.self_mass),
        milliseconds(segment.tpot_s),
        milliseconds(segment.ttft_s),
    ]
