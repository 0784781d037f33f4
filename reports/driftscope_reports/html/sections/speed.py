"""Section on serving speed and the predicted effect of another K."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.closeup.closeup import SAMPLED
from driftscope.analysis.closeup.durations import AT, BETWEEN, DRAFT, STEP, TPOT, TTFT, Distribution
from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import listed, milliseconds, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics import latency
from driftscope.metrics.definition import Definition
from driftscope.metrics.throughput import PREDICTED_TPOT, SPEEDUP
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Mark, Series, Unit
from driftscope_reports.drawing.palette import colour
from driftscope_reports.html.parts.heatmap import gap
from driftscope_reports.html.parts.run_series import by_run
from driftscope_reports.html.parts.section import Picture, Section, Size, sized
from driftscope_reports.html.parts.tables import by_run_table, table
from driftscope_reports.html.sections.baseline import Baseline, baseline_in
from driftscope_reports.markup import Markup

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
    """Return the predicted speed by K, then the durations and their distributions."""
    runs, held = analysis.runs, baseline_in(analysis)
    spread = [p for d in _DURATIONS if (p := _spread(runs, held, *d))]
    predicted = _by_k(analysis.cases, held)
    pictures = [*([predicted] if predicted else []), *spread]
    if len(pictures) % 2:
        pictures = [*pictures[:-3], *(sized(p, Size.SMALL) for p in pictures[-3:])]
    return Section(
        id="speed",
        name="Speed",
        lead=_lead(runs, held),
        pictures=tuple(pictures),
        body=_means(runs, held) if any(run.closeup for run in runs) else None,
        affects=("speed",),
        missing=None if pictures else "No durations were recorded: not applicable.",
    )


def _lead(runs: Sequence[RunSummary], held: Baseline | None) -> str:
    parts = [milliseconds(run.latency.tpot_s) for run in runs]
    said = f"Mean time per output token: {by_run(runs, parts)}."
    if held is None:
        return said
    against = "; ".join(_against(run, held, len(runs)) for run in runs)
    return f"{said} The {held.label} takes {milliseconds(held.latency.tpot_s)}: {against}."


def _against(run: RunSummary, held: Baseline, runs: int) -> str:
    a, b = held.latency, run.latency
    found = gap(a.tpot_s, a.tpot_s_interval, b.tpot_s, b.tpot_s_interval)
    name = run.label if runs > 1 else "this run"
    if found.value is None or found.interval is None:
        return f"{name} cannot be compared with it"
    if not found.interval.excludes_zero():
        return f"{name} cannot be told apart from it"
    faster = "faster" if found.value < 0 else "slower"
    ends = sorted(map(abs, (found.interval.low, found.interval.high)))
    return (
        f"{name} is {milliseconds(abs(found.value))} {faster} "
        f"(95% interval {milliseconds(ends[0])} to {milliseconds(ends[1])})"
    )


_Predicted = tuple[int, RunSummary, Advice]


def _by_k(cases: Sequence[Case], held: Baseline | None) -> Picture | None:
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
    titles = [(_in_short if several else _predicted_title)(run, a) for _, run, a in known]
    assumed = dict.fromkeys(each for _, _, advice in known for each in advice.assumed)
    ks = max(len(advice.overall.tpot_s) for _, _, advice in known)
    return Picture(
        id="speed-by-k",
        title="; ".join(titles),
        how="The time per output token that a cost model, fitted to the step times of a run, "
        "predicts for each number K of guesses, with its 95% interval. Lower is faster; K = 0 is "
        "no speculation.",
        chart=Chart(
            series=(*(_predicted(*each) for each in known), *_level(held, ks)),
            x_title="K",
            y_title="milliseconds per token",
            axis=Axis.NUMBER,
            unit=Unit.MS,
            whole=True,
            marks=_chosen(known),
        ),
        definitions=(PREDICTED_TPOT, SPEEDUP),
        assumed=f"The steps cannot tell, so it is assumed: {'; '.join(assumed)}."
        if assumed
        else None,
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
    """Return the K that ran and the K predicted best, each with its runs."""
    ran: dict[int, list[str]] = {}
    best: dict[int, list[str]] = {}
    for _, run, advice in known:
        for k in advice.served.ks:
            ran.setdefault(k, []).append(run.label)
        if advice.overall.best_k not in advice.served.ks and advice.doubt is None:
            best.setdefault(advice.overall.best_k, []).append(run.label)
    words = [(k, "ran", who) for k, who in ran.items()]
    words += [(k, "predicted best" if len(known) < 2 else "best", who) for k, who in best.items()]
    return tuple(
        Mark(x=k, text=f"K = {k} {what}{f' ({listed(who)})' if len(who) < len(known) else ''}")
        for k, what, who in words
    )


def _level(held: Baseline | None, ks: int) -> list[Series]:
    """Return the baseline's measured time as a horizontal line."""
    if held is None or held.latency.tpot_s is None:
        return []
    time = 1000 * held.latency.tpot_s
    return [
        Series(
            name=f"{held.label}, measured",
            kind=Kind.DASHED,
            x=tuple(range(ks)),
            y=(time,) * ks,
            colour="ink",
        )
    ]


def _predicted_title(run: RunSummary, advice: Advice) -> str:
    best = advice.overall.best_k
    if advice.doubt is not None:
        return f"Which K is fastest cannot be told: {advice.doubt}"
    if not advice.served.mixed and best == run.k:
        return f"No other K is predicted to serve faster than the K = {best} that ran"
    gain = advice.overall.gain
    if advice.useless or gain.interval is None:
        return "K = 0 is the fastest: next to nothing is accepted, whatever K is"
    ends = f"95% interval {percent_of(gain.interval.low)} to {percent_of(gain.interval.high)}"
    if gain.interval.excludes_zero():
        return f"K = {best} would serve {percent_of(gain.value)} faster ({ends})"
    return (
        f"K = {best} is predicted to serve {percent_of(gain.value)} faster, and is not told apart "
        f"from {advice.served.words} ({ends})"
    )


def _in_short(run: RunSummary, advice: Advice) -> str:
    """Return the title part of one run among several."""
    best, gain = advice.overall.best_k, advice.overall.gain
    if advice.doubt is not None:
        return f"{run.label}: which K is fastest cannot be told"
    if advice.useless or gain.interval is None:
        return f"{run.label}: K = 0 is the fastest, since next to nothing is accepted"
    if not advice.served.mixed and best == run.k:
        return f"{run.label}: no other K is predicted to serve faster than {run.k}"
    unsure = "" if gain.interval.excludes_zero() else f", not told apart from {advice.served.words}"
    return f"{run.label}: {percent_of(gain.value)} faster with K = {best}{unsure}"


def percent_of(value: float) -> str:
    """Return a gain, which may be a loss, in percent."""
    return f"{'−' if value < 0 else ''}{percent(abs(value))}"


def _spread(
    runs: Sequence[RunSummary],
    held: Baseline | None,
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
    if held is not None and name in held.durations:
        known.append((len(runs), held.label, held.durations[name]))
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
        how=f"{how} The curve, through {len(AT)} quantiles, says which share took at most so long: "
        "a long flat end to the right is a slow tail.",
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


def _means(runs: Sequence[RunSummary], held: Baseline | None) -> Markup:
    known = [(run.label, run.closeup.durations) for run in runs if run.closeup]
    if held is not None:
        known.append((held.label, held.durations))
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
