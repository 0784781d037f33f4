"""Section on steps in which speculation gained nothing."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.closeup import ACCEPTED, Timeline
from driftscope.analysis.number_words import listed, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.fallback import REJECTED as REJECTED_ROUNDS
from driftscope.metrics.fallback import UNDRAFTED
from driftscope.pipeline import Analysis
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.run_series import about, by_run
from driftscope_reports.html.parts.tables import by_run_table
from driftscope_reports.html.parts.timescale import clock, moment, unit_of
from driftscope_reports.html.sections import step_outcomes
from driftscope_reports.markup import Child, Markup, el
from driftscope_reports.model import Picture, Section, Size, sized


def section(analysis: Analysis) -> Section:
    """Return the outcomes of the decode steps, over time and in total."""
    runs = analysis.runs
    pictures = [
        _timeline(i, run, run.closeup.timeline, runs)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    return Section(
        id="fallback",
        name="Fallback",
        conclusion=_conclusion(runs),
        lead=_TWO if any(run.fallback.undrafted for run in runs) else None,
        pictures=(*(_overlaid(runs) if len(runs) > 1 else []), *pictures),
        body=_counts(runs),
        affects=("fallback",),
    )


def _conclusion(runs: Sequence[RunSummary]) -> str:
    rejected = by_run(runs, [percent(run.fallback.rejected_share) for run in runs])
    rejected_words = f"Of the decode steps, {rejected} had a draft of which nothing was accepted"
    if not any(run.fallback.undrafted for run in runs):
        return f"{rejected_words}; every step had a draft."
    undrafted = by_run(runs, [percent(run.fallback.undrafted_share) for run in runs])
    return f"{rejected_words}, and {undrafted} had no draft."


_TWO = "Rejected rounds and steps without a draft are different outcomes and are never added up."


def _overlaid(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return all runs side by side, in total and over time."""
    over_time = _over_time(runs)
    shares = _shares(runs)
    return [shares, over_time] if over_time else [shares]


def _shares(runs: Sequence[RunSummary]) -> Picture:
    names = step_outcomes.outcomes_of(runs)
    series = []
    for i, run in enumerate(runs):
        known = [step_outcomes.share(run, name) for name in names]
        series.append(
            Series(
                name=run.label,
                kind=Kind.BAR,
                x=tuple(step_outcomes.short_label(name) for name in names),
                y=tuple(value for value, _ in known),
                colour=colour(i),
                pattern=PATTERNS[i % len(PATTERNS)],
                low=tuple(spread.low if spread else None for _, spread in known),
                high=tuple(spread.high if spread else None for _, spread in known),
            )
        )
    useful = by_run(runs, [percent(step_outcomes.share(run, ACCEPTED)[0]) for run in runs])
    return Picture(
        id="fallback-shares",
        title=f"At least one draft token was accepted in {useful} of the decode steps",
        how="Each group of bars is one outcome of decode steps, as a share of all decode steps of "
        "a run, with 95% intervals. The first outcome is what speculation is for; the others save "
        "nothing.",
        chart=Chart(
            series=tuple(series),
            x_title="outcome of a decode step",
            y_title="of all decode steps",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
        ),
        definitions=(REJECTED_ROUNDS, UNDRAFTED),
    )


_TOGETHER = 4
"""Number of timeline windows that form one point over time: fewer steps vary mostly by chance."""


def _over_time(runs: Sequence[RunSummary]) -> Picture | None:
    """Return the share of steps that kept a drafted token, each run from its own start; None for
    fewer than two runs with a timeline."""
    known = [
        (i, run, run.closeup.timeline)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    if len(known) < 2:
        return None
    lasted = [t.window_s * len(t.steps[ACCEPTED]) for _, _, t in known]
    seconds, unit = unit_of(max(lasted))
    return Picture(
        id="fallback-over-time",
        title="Outcomes over time, each run from its own start",
        how="The share of decode steps in which at least one draft token was accepted. Where one "
        "run falls and the other does not, look for the reason in the timelines below.",
        chart=Chart(
            series=tuple(_kept(i, run, t, seconds) for i, run, t in known),
            x_title=f"{unit} since the start",
            y_title="of the decode steps",
            axis=Axis.NUMBER,
            unit=Unit.SHARE,
        ),
        definitions=(REJECTED_ROUNDS, UNDRAFTED),
        note=f"Each point covers {_TOGETHER} of the {len(known[0][2].steps[ACCEPTED])} windows "
        "below.",
    )


def _kept(index: int, run: RunSummary, timeline: Timeline, seconds: float) -> Series:
    starts = range(0, len(timeline.steps[ACCEPTED]), _TOGETHER)
    kept = [sum(timeline.steps[ACCEPTED][at : at + _TOGETHER]) for at in starts]
    of = [sum(sum(n[at : at + _TOGETHER]) for n in timeline.steps.values()) for at in starts]
    return Series(
        name=run.label,
        colour=colour(index),
        style=index,
        x=tuple((at + _TOGETHER / 2) * timeline.window_s / seconds for at in starts),
        y=tuple(n / all_of if all_of else None for n, all_of in zip(kept, of, strict=True)),
    )


def _timeline(
    index: int, run: RunSummary, timeline: Timeline, runs: Sequence[RunSummary]
) -> Picture:
    windows = max(map(len, timeline.steps.values()), default=0)
    seconds, unit = unit_of(timeline.window_s * windows)
    middle = tuple((at + 0.5) * timeline.window_s / seconds for at in range(windows))
    order = step_outcomes.outcomes_of(runs)
    series = tuple(
        Series(
            name=step_outcomes.label(name),
            kind=Kind.STACK,
            x=middle,
            y=tuple(float(n) for n in timeline.steps[name]),
            colour=step_outcomes.colour(name),
            pattern=step_outcomes.pattern(name, order),
        )
        for name in order
        if sum(timeline.steps.get(name, ())) or name == ACCEPTED
    )
    made = Picture(
        id=f"fallback-{index}",
        title=about(run, runs, _title(run)),
        how="Each bar is a window of time, divided by the outcomes of its decode steps. A block of "
        "one colour is a time in which something kept the drafter from working.",
        chart=Chart(
            series=series,
            x_title=f"{unit} since {clock(timeline.start_s)}",
            y_title="decode steps",
            axis=Axis.NUMBER,
            unit=Unit.COUNT,
        ),
        definitions=(REJECTED_ROUNDS, UNDRAFTED),
        note=f"{len(middle)} windows of {_length(timeline.window_s)} each, from "
        f"{moment(timeline.start_s)}.",
    )
    return sized(made, Size.WIDE)


def _title(run: RunSummary) -> str:
    shares = run.fallback
    if not shares.undrafted:
        return "every decode step had a draft"
    failed = shares.undrafted - shares.deliberate
    parts = [
        f"{percent(n / shares.steps)} {words}"
        for n, words in ((shares.deliberate, "on purpose"), (failed, "because it failed"))
        if n
    ]
    most = max(shares.by_reason, key=shares.by_reason.__getitem__)
    reason = (
        step_outcomes.label(most).removeprefix("no draft: ").removesuffix(step_outcomes.ON_PURPOSE)
    )
    return f"no draft in {listed(parts)}; most often: {reason}"


def _length(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def _counts(runs: Sequence[RunSummary]) -> Markup:
    """Return a table of outcomes, with the runs below each other for each outcome."""
    names = [
        *step_outcomes.outcomes_of(runs),
        *([] if any(run.fallback.undrafted for run in runs) else [None]),
    ]
    rows = [_row(i, run, name) for name in names for i, run in enumerate(runs)]
    head = ["run", "decode step", "share", "steps"]
    return by_run_table(head, rows, words=2, caption="Decode steps by outcome", runs=len(runs))


def _row(index: int, run: RunSummary, name: str | None) -> list[Child]:
    share = step_outcomes.share(run, name)[0] if name else 0.0
    words = step_outcomes.label(name) if name else "no draft"
    bar = el(
        "svg",
        el("rect", width=f"{100 * (share or 0.0):.1f}%", height="10"),
        height="10",
        class_=f"track run-{index % len(PATTERNS)}",
        aria_hidden="true",
        focusable="false",
    )
    count = round((share or 0.0) * run.fallback.steps)
    return [
        run.label,
        words,
        el("span", bar, el("span", percent(share)), class_="share"),
        f"{count:,}",
    ]
