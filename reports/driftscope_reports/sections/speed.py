"""How fast it served, and what another K would do."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.closeup.durations import AT, BETWEEN, DRAFT, STEP, TPOT, TTFT, Distribution
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, milliseconds, percent
from driftscope.metrics import latency
from driftscope.metrics.definition import Definition
from driftscope.metrics.throughput import RELATIVE_SPEED, relative_speed
from driftscope_reports.chart import Axis, Chart, Mark, Series, Unit
from driftscope_reports.looks import colour
from driftscope_reports.markup import Markup
from driftscope_reports.section import Picture, Section
from driftscope_reports.tables import table

_DURATIONS: tuple[tuple[str, str, str, tuple[Definition, ...]], ...] = (
    (
        TPOT,
        "Time per output token",
        "Each request counts once, with its own mean.",
        (latency.TPOT,),
    ),
    (TTFT, "Time to first token", "From a request's arrival to its first token.", (latency.TTFT,)),
    (
        BETWEEN,
        "Time between outputs",
        "From one output of a request to its next, as a streaming reader feels it.",
        (latency.BETWEEN_OUTPUTS,),
    ),
    (
        STEP,
        "Time of a step that drafts",
        "The whole model step on the worker's thread, without the probe's own time.",
        (latency.STEP,),
    ),
    (DRAFT, "Time of the drafter in it", "What drafting takes of such a step.", (latency.STEP,)),
)


def section(analysis: Analysis) -> Section:
    """Predicted speed by K, then the durations and how they are spread."""
    runs = analysis.runs
    pictures = [p for p in (_by_k(runs), *(_spread(runs, *d) for d in _DURATIONS)) if p]
    return Section(
        id="speed",
        name="Speed",
        lead=_lead(runs),
        pictures=tuple(pictures),
        body=_means(runs) if any(run.closeup for run in runs) else None,
        affects=("speed",),
        missing=None if pictures else "No durations were recorded: not applicable.",
    )


def _lead(runs: Sequence[RunSummary]) -> str:
    parts = [f"{milliseconds(run.latency.tpot_s)} ({run.label})" for run in runs]
    return f"Mean time per output token: {listed(parts)}."


def _by_k(runs: Sequence[RunSummary]) -> Picture | None:
    series, marks, best_of = [], [], []
    for i, run in enumerate(runs):
        if run.cost is None or run.k < 2:
            continue
        speeds = relative_speed(run.acceptance.marginal, run.cost)
        best = max(range(run.k), key=speeds.__getitem__) + 1
        marks.append(Mark(x=best, text=f"{run.label}: best K = {best}"))
        best_of.append(f"K = {best} ({run.label}, {percent(speeds[best - 1] - 1)} over K = {run.k})"
                       if best < run.k else f"the K that ran ({run.label})")  # fmt: skip
        series.append(
            Series(
                name=run.label, x=tuple(range(1, run.k + 1)), y=speeds, colour=colour(i), style=i
            )
        )
    if not series:
        return None
    recorded = any(run.cost is not None and run.cost.recorded for run in runs)
    return Picture(
        id="speed-by-k",
        title=f"By this run's own step times, the fastest would be {listed(best_of)}",
        how="An estimate of tokens per second for each number of drafted tokens K, where the K "
        "that ran is 1. It takes drafting time as proportional to K, so try the K it names under "
        "your own load.",
        chart=Chart(
            series=tuple(series), x_title="K", y_title="speed against the K that ran",
            axis=Axis.NUMBER, whole=True, marks=tuple(marks),
        ),
        definitions=(RELATIVE_SPEED,),
        note="Timed in recorded steps, which the probe slows: drafting looks dearer than it is."
        if recorded
        else None,
    )  # fmt: skip


def _spread(
    runs: Sequence[RunSummary],
    name: str,
    words: str,
    how: str,
    definitions: tuple[Definition, ...],
) -> Picture | None:
    known = [
        (i, run.label, found)
        for i, run in enumerate(runs)
        if run.closeup and (found := run.closeup.durations.get(name)) is not None
    ]
    if not known:
        return None
    parts = [
        f"{milliseconds(d.quantiles_s[len(AT) // 2])} in the median, {milliseconds(d.p99_s)} at "
        f"the 99th percentile ({label})"
        for _, label, d in known
    ]
    series = tuple(
        Series(
            name=label, x=tuple(1000 * q for q in d.quantiles_s), y=AT, colour=colour(i), style=i
        )
        for i, label, d in known
    )  # fmt: skip
    return Picture(
        id=f"speed-{name.removesuffix('_s').replace('_', '-')}",
        title=f"{words}: {listed(parts)}",
        how=f"{how} The curve says which share of them took at most so long: steep is even, a long "
        "foot to the right is a slow tail.",
        chart=Chart(
            series=series, x_title="milliseconds", y_title="share at most so long",
            axis=Axis.NUMBER, unit=Unit.SHARE,
        ),
        definitions=definitions,
        numbers=_quantiles(words, known),
    )  # fmt: skip


def _quantiles(words: str, known: Sequence[tuple[int, str, Distribution]]) -> Markup:
    picked = (0, 4, 10, 20, 30, 36, 38, 40)
    rows = [[label, *(milliseconds(d.quantiles_s[at]) for at in picked)] for _, label, d in known]
    head = ["", *(f"{100 * AT[at]:g}%" for at in picked)]
    return table(head, rows, caption=f"Quantiles of: {words}")


def _means(runs: Sequence[RunSummary]) -> Markup:
    rows = [
        [run.label, words, f"{d.count:,}", milliseconds(d.mean_s),
         milliseconds(d.quantiles_s[len(AT) // 2]), milliseconds(d.p99_s)]
        for name, words, _, _ in _DURATIONS
        for run in runs
        if run.closeup and (d := run.closeup.durations.get(name)) is not None
    ]  # fmt: skip
    head = ["run", "duration", "counted", "mean", "median", "99th percentile"]
    return table(head, rows, words=2, caption="Durations", sortable=True)
