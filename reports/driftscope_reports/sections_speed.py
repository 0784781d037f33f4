"""Sections on serving speed, and on steps in which speculation gained nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from driftscope.analysis.advice import Advice, answer
from driftscope.analysis.closeup import (
    ACCEPTED,
    AT,
    BETWEEN,
    DRAFT,
    REJECTED,
    SAMPLED,
    STEP,
    TPOT,
    TTFT,
    Distribution,
    Timeline,
)
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.number_words import NOTHING, listed, milliseconds, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import threshold_words
from driftscope.findings.case import Case
from driftscope.findings.finding import capital
from driftscope.metrics import fallback as definitions
from driftscope.metrics import latency
from driftscope.metrics.latency import PREDICTED_TPOT
from driftscope.pipeline import Analysis
from driftscope.vocabulary import UndraftedReason
from driftscope_reports.charts import Axis, Mark, Unit, bars, expectation, figure, line, scaled
from driftscope_reports.model import Picture, Section, about, by_run, by_run_table, table
from driftscope_reports.page import part
from driftscope_reports.tables import POLICY_COLUMNS, head_of, rows_of

_Runs = Sequence[RunSummary]

_DURATIONS = (
    (TPOT, "Time per output token", "Each request counts once, with its mean.", latency.TPOT),
    (TTFT, "Time to first token", "From a request's arrival to its first token.", latency.TTFT),
    (
        BETWEEN,
        "Time between outputs",
        "From one output of a request to its next, as a streaming client experiences it.",
        latency.BETWEEN_OUTPUTS,
    ),
    (
        STEP,
        "Time of a step that drafts",
        "The whole model step on the worker's thread, without the time spent in the probe.",
        latency.STEP,
    ),
    (
        DRAFT,
        "Drafter's time in that step",
        "The part of such a step that drafting takes.",
        latency.STEP,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Speed of the baseline, whether it speculates or not."""

    label: str
    latency: Latency
    durations: Mapping[str, Distribution]


def baseline_in(analysis: Analysis) -> Baseline | None:
    """Return the given baseline; None without one, or if it is one of the runs."""
    for case in analysis.cases:
        if case.plain is not None:
            return Baseline(
                label=case.plain.label, latency=case.plain.latency, durations=case.plain.durations
            )
    shown = {run.label for run in analysis.runs}
    for case in analysis.cases:
        reference = case.reference
        if reference is not None and reference.label not in shown:
            return Baseline(
                label=reference.label,
                latency=reference.latency,
                durations=reference.closeup.durations if reference.closeup else {},
            )
    return None


def speed(analysis: Analysis) -> Section:
    """Return the predicted speed by K, then the durations and their distributions."""
    runs, baseline = analysis.runs, baseline_in(analysis)
    pictures = [*_by_k(analysis.cases, baseline), *_distributions(runs, baseline)]
    # What other policies would have served, with a sentence on thresholds.
    parts: list[Markup] = []
    for case in analysis.cases:
        if case.advice is None or not case.advice.policies:
            continue
        words = threshold_words(case.advice.policies, case.advice.held_out)
        name = f"{case.run.label}: " if len(analysis.cases) > 1 else ""
        parts += [part("paragraph", f"{name}{capital(words)}.")] if words else []
        caption = f"{name}What other policies would have served"
        rows = rows_of(POLICY_COLUMNS, case.advice.policies)
        parts.append(table(head_of(POLICY_COLUMNS), rows, caption=caption))
    means = by_run(runs, [milliseconds(run.latency.tpot_s) for run in runs])
    lead = f"Mean time per output token: {means}."
    if baseline is not None:
        lead += f" The {baseline.label} takes {milliseconds(baseline.latency.tpot_s)}."
    return Section(
        id="speed",
        name="Speed",
        lead=lead,
        pictures=pictures,
        below=parts,
        affects=("speed",),
        missing=None if pictures else "No durations were recorded: not applicable.",
    )


def _by_k(cases: Sequence[Case], baseline: Baseline | None) -> list[Picture]:
    """Return the predicted TPOT for every K, all runs overlaid. Runs of the same models share one
    cost model."""
    known = [
        (i, case.run, case.advice)
        for i, case in enumerate(cases)
        if case.advice is not None and len(case.advice.overall.tpot_s) > 1
    ]
    if not known:
        return []
    several = len(cases) > 1
    titles = [_in_short(run, a) if several else capital(answer(a)) for _, run, a in known]
    assumed = dict.fromkeys(assumption for _, _, advice in known for assumption in advice.assumed)
    drawn = [
        line(
            run.label,
            [1000 * time.value if time.interval else None for time in advice.overall.tpot_s],
            x=range(len(advice.overall.tpot_s)),
            run=index,
            intervals=[scaled(time.interval, 1000) for time in advice.overall.tpot_s],
        )
        for index, run, advice in known
    ]
    if baseline is not None and baseline.latency.tpot_s is not None:
        ks = max(len(advice.overall.tpot_s) for _, _, advice in known)
        time = [1000 * baseline.latency.tpot_s] * ks
        drawn.append(expectation(f"{baseline.label}, measured", time, x=range(ks)))
    marks: dict[tuple[int, str], list[str]] = {}
    for _, run, advice in known:
        for k in advice.served.ks:
            marks.setdefault((k, "ran"), []).append(run.label)
        choice, decided = advice.choice, advice.worth_it
        if decided and choice.k is not None and choice.k not in advice.served.ks:
            marks.setdefault((choice.k, "is faster"), []).append(run.label)
        elif not decided and choice.next is not None and advice.doubt is None:
            marks.setdefault((choice.next.k, "to measure"), []).append(run.label)
    chosen = []
    for (k, what), who in sorted(marks.items(), key=lambda point: point[0][1] != "ran"):
        some = f" ({listed(who)})" if len(who) < len(known) else ""
        chosen.append(Mark(x=k, text=f"K = {k} {what}{some}"))
    return [
        Picture(
            id="speed-by-k",
            title="; ".join(titles),
            how="The time per output token with each K, the number of draft tokens: measured where "
            "runs with that K are there, with its 95% interval; for every other K a guess, with "
            "the ends between which it must lie, because more tokens take no less time. Lower is "
            "faster; K = 0 is no speculation.",
            chart=figure(
                drawn,
                x_title="K",
                y_title="milliseconds per token",
                axis=Axis.NUMBER,
                unit=Unit.MS,
                whole=True,
                marks=chosen,
            ),
            definitions=(PREDICTED_TPOT,),
            assumed=f"Not measured: {'; '.join(assumed)}." if assumed else None,
            hero=True,
        )
    ]


def _in_short(run: RunSummary, advice: Advice) -> str:
    """Return the title part of one run among several."""
    if advice.doubt is not None:
        return f"{run.label}: not known which K is fastest"
    if advice.worth_it or advice.useless or advice.choice.next is None:
        return f"{run.label}: {answer(advice)}"
    return f"{run.label}: measure K = {advice.choice.next.k}"


def _distributions(runs: _Runs, baseline: Baseline | None) -> list[Picture]:
    """Return the distribution of each duration that was recorded."""
    out = []
    for name, words, how, definition in _DURATIONS:
        known = [
            (i, run.label, durations)
            for i, run in enumerate(runs)
            if run.closeup and (durations := run.closeup.durations.get(name)) is not None
        ]
        if not known:
            continue
        if baseline is not None and name in baseline.durations:
            known.append((len(runs), baseline.label, baseline.durations[name]))
        parts = [
            f"median {milliseconds(d.quantiles_s[len(AT) // 2])}, p99 {milliseconds(d.p99_s)}"
            f"{f' ({label})' if len(known) > 1 else ''}"
            for _, label, d in known
        ]
        sampled = name == BETWEEN and max(run.requests for run in runs) > SAMPLED
        rows = [
            [f"{100 * AT[at]:g}%", *(milliseconds(d.quantiles_s[at]) for _, _, d in known)]
            for at in (0, 4, 10, 20, 30, 36, 38, 40)
        ]
        head = ["took at most", *(label for _, label, _ in known)]
        out.append(
            Picture(
                id=f"speed-{name.removesuffix('_s').replace('_', '-')}",
                title=f"{words}: {'; '.join(parts)}",
                how=f"{how} The curve, through {len(AT)} quantiles, shows which share took at most "
                "that long: a long flat end to the right is a slow tail.",
                chart=figure(
                    [
                        line(label, AT, x=[1000 * q for q in d.quantiles_s], run=i)
                        for i, label, d in known
                    ],
                    x_title="milliseconds",
                    y_title="share",
                    axis=Axis.NUMBER,
                    unit=Unit.SHARE,
                ),
                definitions=(definition,),
                note=f"Of {SAMPLED:,} requests, evenly from all, the worst and the best."
                if sampled
                else None,
                numbers=table(head, rows, caption=f"Quantiles of: {words}"),
            )
        )
    return out


# ---- time axes

_UNITS = ((3600.0, "hours"), (60.0, "minutes"))
_FEW = 3
"""Smallest number of units from which a unit is used."""


def unit_of(lasted_s: float) -> tuple[float, str]:
    """Return the unit of an axis of this length: its seconds and its name."""
    for seconds, name in _UNITS:
        if lasted_s >= _FEW * seconds:
            return seconds, name
    return 1.0, "seconds"


def clock(time_s: float) -> str:
    """Return a Unix time as time of day, short enough for an axis."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S UTC")


def moment(time_s: float) -> str:
    """Return a Unix time as date and time of day."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# ---- outcomes of decode steps: names, colours and shares, identical in every picture

_REASONS = {
    UndraftedReason.K_ZERO: "K = 0 by batch size",
    UndraftedReason.CONFIDENCE: "cut for low confidence",
    UndraftedReason.NO_DRAFT: "the drafter returned none",
}
ON_PURPOSE = " (on purpose)"


def outcomes_of(runs: _Runs) -> list[str]:
    """Return the outcomes of steps in any of the runs: best first, deliberate reasons before
    others."""
    reasons = {name for run in runs for name in run.fallback.by_reason}
    return [ACCEPTED, REJECTED, *sorted(reasons, key=lambda name: (not deliberate(name), name))]


def deliberate(name: str) -> bool:
    """Return whether steps with this outcome had no draft on purpose."""
    return name not in (ACCEPTED, REJECTED) and name in UndraftedReason.DELIBERATE


def outcome_share(run: RunSummary, name: str) -> tuple[float | None, Interval | None]:
    """Return the share of the run's decode steps with this outcome, and its interval; 0 for a
    reason that never occurred."""
    counts, spread = run.fallback, run.fallback_spread
    if not counts.steps:
        return None, None
    if name == ACCEPTED:
        useful = counts.steps - counts.rejected_rounds - counts.undrafted
        return useful / counts.steps, spread.accepted
    if name == REJECTED:
        return counts.rejected_share, spread.rejected
    return counts.by_reason.get(name, 0) / counts.steps, spread.by_reason.get(name, spread.never)


def outcome_words(name: str) -> str:
    """Return the full name of the outcome."""
    if name == ACCEPTED:
        return "at least one draft token accepted"
    if name == REJECTED:
        return "rejected round"
    reason = _REASONS.get(name, name.replace("_", " "))
    return f"no draft: {reason}{ON_PURPOSE if deliberate(name) else ''}"


_LOOKS = {ACCEPTED: ("good", ""), REJECTED: ("high", "/")}
"""Colour and fill pattern of the bars of outcomes with a draft."""
_PATTERNS = ("-", "x", ".", "\\", "|")
"""Fill patterns of the other outcomes."""


# ---- fallback


def fallback(analysis: Analysis) -> Section:
    """Return the outcomes of the decode steps, over time and in total."""
    runs = analysis.runs
    timed = [
        (i, run, run.closeup.timeline)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    rejected = by_run(runs, [percent(run.fallback.rejected_share) for run in runs])
    words = f"Of the decode steps, {rejected} had a draft of which nothing was accepted"
    lead = None
    if any(run.fallback.undrafted for run in runs):
        undrafted = by_run(runs, [percent(run.fallback.undrafted_share) for run in runs])
        words, lead = f"{words}, and {undrafted} had no draft.", _TWO
    else:
        words += "; every step had a draft."
    return Section(
        id="fallback",
        name="Fallback",
        conclusion=words,
        lead=lead,
        pictures=[_timeline(*outcome, runs) for outcome in timed],
        below=[_counts(runs)],
        affects=("fallback",),
    )


_TWO = "Rejected rounds and steps without a draft are different outcomes and are never added up."
_DEFINITIONS = (definitions.REJECTED, definitions.UNDRAFTED)


def _timeline(index: int, run: RunSummary, timeline: Timeline, runs: _Runs) -> Picture:
    windows = max(map(len, timeline.steps.values()), default=0)
    seconds, unit = unit_of(timeline.window_s * windows)
    middle = [(at + 0.5) * timeline.window_s / seconds for at in range(windows)]
    order = outcomes_of(runs)
    drawn = []
    for name in order:
        if sum(timeline.steps.get(name, ())) or name == ACCEPTED:
            colour, pattern = (
                "same" if deliberate(name) else "apart",
                _PATTERNS[order.index(name) % 5],
            )
            if name in _LOOKS:
                colour, pattern = _LOOKS[name]
            counts = [float(n) for n in timeline.steps[name]]
            drawn.append(bars(outcome_words(name), middle, counts, colours=colour, pattern=pattern))
    length = f"{1000 * timeline.window_s:.3g} ms"
    if timeline.window_s >= 1:
        minutes = timeline.window_s / 60
        length = f"{minutes:.3g} min" if minutes >= 2 else f"{timeline.window_s:.3g} s"
    shares, title = run.fallback, "every decode step had a draft"
    if shares.undrafted:
        failed = shares.undrafted - shares.deliberate
        reasons = ((shares.deliberate, "on purpose"), (failed, "because it failed"))
        parts = [f"{percent(n / shares.steps)} {words}" for n, words in reasons if n]
        most = max(shares.by_reason, key=shares.by_reason.__getitem__)
        reason = outcome_words(most).removeprefix("no draft: ").removesuffix(ON_PURPOSE)
        title = f"no draft in {listed(parts)}; most often: {reason}"
    return Picture(
        id=f"fallback-{index}",
        title=about(run, runs, title),
        how="Each bar is a window of time, divided by the outcomes of its decode steps. A block of "
        "one colour is a time in which something kept the drafter from working.",
        chart=figure(
            drawn,
            x_title=f"{unit} since {clock(timeline.start_s)}",
            y_title="decode steps",
            axis=Axis.NUMBER,
            unit=Unit.COUNT,
            stacked=True,
        ),
        definitions=_DEFINITIONS,
        note=f"{len(middle)} windows of {length} each, from {moment(timeline.start_s)}.",
        hero=True,
    )


def _counts(runs: _Runs) -> Markup:
    """Return a table of outcomes, with the runs below each other for each outcome."""
    outcomes = [
        (outcome_words(name), i, run, *outcome_share(run, name))
        for name in outcomes_of(runs)
        for i, run in enumerate(runs)
    ]
    if not any(run.fallback.undrafted for run in runs):
        outcomes += [("no draft", i, run, 0.0, None) for i, run in enumerate(runs)]
    rows = [
        [
            run.label,
            words,
            part("share_bar", percent(share), f"{100 * (share or 0.0):.1f}%", i % 6),
            NOTHING if spread is None else f"{percent(spread.low)} to {percent(spread.high)}",
            f"{round((share or 0.0) * run.fallback.steps):,}",
        ]
        for words, i, run, share, spread in outcomes
    ]
    head = ["run", "decode step", "share", "95% interval", "steps"]
    return by_run_table(head, rows, caption="Decode steps by outcome", runs=len(runs))
