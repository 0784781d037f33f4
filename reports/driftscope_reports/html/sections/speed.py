"""Section on serving speed and the predicted effect of another K."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.advice import Advice, answer
from driftscope.analysis.closeup import AT, BETWEEN, DRAFT, SAMPLED, STEP, TPOT, TTFT, Distribution
from driftscope.analysis.number_words import listed, milliseconds
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import Case
from driftscope.findings.finding import capital
from driftscope.metrics import latency
from driftscope.metrics.definition import Definition
from driftscope.metrics.latency import PREDICTED_TPOT, SPEEDUP
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Mark, Series, Unit
from driftscope_reports.drawing.palette import colour
from driftscope_reports.html.parts.heatmap import gap
from driftscope_reports.html.parts.run_series import by_run
from driftscope_reports.html.parts.tables import by_run_table, table
from driftscope_reports.html.sections.baseline import Baseline, baseline_in
from driftscope_reports.markup import Markup
from driftscope_reports.model import Picture, Section

_DURATIONS: tuple[tuple[str, str, str, tuple[Definition, ...]], ...] = (
    (
        TPOT,
        "Time per output token",
        "Each request counts once, with its mean.",
        (latency.TPOT,),
    ),
    (TTFT, "Time to first token", "From a request's arrival to its first token.", (latency.TTFT,)),
    (
        BETWEEN,
        "Time between outputs",
        "From one output of a request to its next, as a streaming client experiences it.",
        (latency.BETWEEN_OUTPUTS,),
    ),
    (
        STEP,
        "Time of a step that drafts",
        "The whole model step on the worker's thread, without the time spent in the probe.",
        (latency.STEP,),
    ),
    (
        DRAFT,
        "Drafter's time in that step",
        "The part of such a step that drafting takes.",
        (latency.STEP,),
    ),
)


def section(analysis: Analysis) -> Section:
    """Return the predicted speed by K, then the durations and their distributions."""
    runs, baseline = analysis.runs, baseline_in(analysis)
    spread = [p for d in _DURATIONS if (p := _spread(runs, baseline, *d))]
    predicted = _by_k(analysis.cases, baseline)
    pictures = (*([predicted] if predicted else []), *spread)
    return Section(
        id="speed",
        name="Speed",
        lead=_lead(runs, baseline),
        pictures=pictures,
        body=_means(runs, baseline) if any(run.closeup for run in runs) else None,
        affects=("speed",),
        missing=None if pictures else "No durations were recorded: not applicable.",
    )


def _lead(runs: Sequence[RunSummary], baseline: Baseline | None) -> str:
    parts = [milliseconds(run.latency.tpot_s) for run in runs]
    means = f"Mean time per output token: {by_run(runs, parts)}."
    if baseline is None:
        return means
    against = "; ".join(_against(run, baseline, len(runs)) for run in runs)
    return f"{means} The {baseline.label} takes {milliseconds(baseline.latency.tpot_s)}: {against}."


def _against(run: RunSummary, baseline: Baseline, runs: int) -> str:
    a, b = baseline.latency, run.latency
    difference = gap(a.tpot_s, a.tpot_s_interval, b.tpot_s, b.tpot_s_interval)
    name = run.label if runs > 1 else "this run"
    if difference.value is None or difference.interval is None:
        return f"{name} cannot be compared with it"
    if not difference.interval.excludes_zero():
        return f"{name} shows no clear difference from it"
    faster = "faster" if difference.value < 0 else "slower"
    ends = sorted(map(abs, (difference.interval.low, difference.interval.high)))
    return (
        f"{name} is {milliseconds(abs(difference.value))} {faster} "
        f"(95% interval {milliseconds(ends[0])} to {milliseconds(ends[1])})"
    )


_Predicted = tuple[int, RunSummary, Advice]


def _by_k(cases: Sequence[Case], baseline: Baseline | None) -> Picture | None:
    """Return the predicted TPOT for every K, all runs overlaid. Runs of the same models share one
    cost model."""
    known = [
        (i, case.run, case.advice)
        for i, case in enumerate(cases)
        if case.advice is not None and len(case.advice.overall.tpot_s) > 1
    ]
    if not known:
        return None
    several = len(cases) > 1
    titles = [_in_short(run, a) if several else capital(answer(a)) for _, run, a in known]
    assumed = dict.fromkeys(each for _, _, advice in known for each in advice.assumed)
    ks = max(len(advice.overall.tpot_s) for _, _, advice in known)
    return Picture(
        id="speed-by-k",
        title="; ".join(titles),
        how="The time per output token with each K, the number of draft tokens: measured where "
        "runs with that K are there, with its 95% interval; for every other K a guess, with the "
        "ends between which it must lie, because more tokens take no less time. Lower is faster; "
        "K = 0 is no speculation.",
        chart=Chart(
            series=(*(_predicted(*each) for each in known), *_level(baseline, ks)),
            x_title="K",
            y_title="milliseconds per token",
            axis=Axis.NUMBER,
            unit=Unit.MS,
            whole=True,
            marks=_chosen(known),
        ),
        definitions=(PREDICTED_TPOT, SPEEDUP),
        assumed=f"Not measured: {'; '.join(assumed)}." if assumed else None,
    )


def _predicted(index: int, run: RunSummary, advice: Advice) -> Series:
    tpot = advice.overall.tpot_s
    ends = [each.interval for each in tpot]
    return Series(
        name=run.label,
        x=tuple(range(len(tpot))),
        y=tuple(1000 * e.value if e.interval else None for e in tpot),
        low=tuple(1000 * each.low if each else None for each in ends),
        high=tuple(1000 * each.high if each else None for each in ends),
        colour=colour(index),
        style=index,
    )


def _chosen(known: Sequence[_Predicted]) -> tuple[Mark, ...]:
    """Return the K that ran and the K to serve or to measure, each with its runs."""
    marks: dict[tuple[int, str], list[str]] = {}
    for _, run, advice in known:
        for k in advice.served.ks:
            marks.setdefault((k, "ran"), []).append(run.label)
        choice, decided = advice.choice, advice.worth_it
        if decided and choice.k is not None and choice.k not in advice.served.ks:
            marks.setdefault((choice.k, "is faster"), []).append(run.label)
        elif not decided and choice.next is not None and advice.doubt is None:
            marks.setdefault((choice.next.k, "to measure"), []).append(run.label)
    return tuple(
        Mark(x=k, text=f"K = {k} {what}{f' ({listed(who)})' if len(who) < len(known) else ''}")
        for (k, what), who in sorted(marks.items(), key=lambda each: each[0][1] != "ran")
    )


def _level(baseline: Baseline | None, ks: int) -> list[Series]:
    """Return the baseline's measured time as a horizontal line."""
    if baseline is None or baseline.latency.tpot_s is None:
        return []
    time = 1000 * baseline.latency.tpot_s
    return [
        Series(
            name=f"{baseline.label}, measured",
            kind=Kind.DASHED,
            x=tuple(range(ks)),
            y=(time,) * ks,
            colour="ink",
        )
    ]


def _in_short(run: RunSummary, advice: Advice) -> str:
    """Return the title part of one run among several."""
    if advice.doubt is not None:
        return f"{run.label}: not known which K is fastest"
    if advice.worth_it or advice.useless or advice.choice.next is None:
        return f"{run.label}: {answer(advice)}"
    return f"{run.label}: measure K = {advice.choice.next.k}"


def _spread(
    runs: Sequence[RunSummary],
    baseline: Baseline | None,
    name: str,
    words: str,
    how: str,
    definitions: tuple[Definition, ...],
) -> Picture | None:
    known = [
        (i, run.label, durations)
        for i, run in enumerate(runs)
        if run.closeup and (durations := run.closeup.durations.get(name)) is not None
    ]
    if not known:
        return None
    if baseline is not None and name in baseline.durations:
        known.append((len(runs), baseline.label, baseline.durations[name]))
    parts = [
        f"median {milliseconds(d.quantiles_s[len(AT) // 2])}, p99 {milliseconds(d.p99_s)}"
        f"{f' ({label})' if len(known) > 1 else ''}"
        for _, label, d in known
    ]
    series = tuple(
        Series(
            name=label, x=tuple(1000 * q for q in d.quantiles_s), y=AT, colour=colour(i), style=i
        )
        for i, label, d in known
    )
    return Picture(
        id=f"speed-{name.removesuffix('_s').replace('_', '-')}",
        title=f"{words}: {'; '.join(parts)}",
        how=f"{how} The curve, through {len(AT)} quantiles, shows which share took at most that "
        "long: a long flat end to the right is a slow tail.",
        chart=Chart(
            series=series,
            x_title="milliseconds",
            y_title="share",
            axis=Axis.NUMBER,
            unit=Unit.SHARE,
        ),
        definitions=definitions,
        note=_sampled(runs) if name == BETWEEN else None,
        numbers=_quantiles(words, known),
    )


def _sampled(runs: Sequence[RunSummary]) -> str | None:
    if max(run.requests for run in runs) <= SAMPLED:
        return None
    return f"Of {SAMPLED:,} requests, evenly from all, the worst and the best."


def _quantiles(words: str, known: Sequence[tuple[int, str, Distribution]]) -> Markup:
    picked = (0, 4, 10, 20, 30, 36, 38, 40)
    rows = [[label, *(milliseconds(d.quantiles_s[at]) for at in picked)] for _, label, d in known]
    head = ["", *(f"{100 * AT[at]:g}%" for at in picked)]
    return table(head, rows, caption=f"Quantiles of: {words}")


def _means(runs: Sequence[RunSummary], baseline: Baseline | None) -> Markup:
    known = [(run.label, run.closeup.durations) for run in runs if run.closeup]
    if baseline is not None:
        known.append((baseline.label, baseline.durations))
    rows = [
        [
            label,
            words,
            f"{d.count:,}",
            milliseconds(d.mean_s),
            milliseconds(d.quantiles_s[len(AT) // 2]),
            milliseconds(d.p99_s),
        ]
        for name, words, _, _ in _DURATIONS
        for label, durations in known
        if (d := durations.get(name)) is not None
    ]
    head = ["run", "duration", "counted", "mean", "median", "99th percentile"]
    return by_run_table(head, rows, words=2, caption="Durations", runs=len(known))
