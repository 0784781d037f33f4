"""Steps in which speculation gave nothing."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.closeup.timeline import ACCEPTED, REJECTED, Timeline
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, percent
from driftscope.metrics.fallback import REJECTED as REJECTED_ROUNDS
from driftscope.metrics.fallback import UNDRAFTED
from driftscope.trace.records import UndraftedReason
from driftscope_reports.byrun import about, by_run
from driftscope_reports.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.markup import Markup, el
from driftscope_reports.section import Picture, Section, Size, sized
from driftscope_reports.tables import by_run_table
from driftscope_reports.timescale import clock, moment, unit_of


def section(analysis: Analysis) -> Section:
    """What became of the decode steps over time, and in all."""
    runs = analysis.runs
    rejected = by_run(runs, [percent(run.fallback.rejected_share) for run in runs])
    undrafted = by_run(runs, [percent(run.fallback.undrafted_share) for run in runs])
    pictures = [
        _timeline(i, run, run.closeup.timeline, runs)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    return Section(
        id="fallback",
        name="Fallback",
        lead=f"Of the decode steps, {rejected} had a draft of which nothing was kept, and "
        f"{undrafted} had no draft. These are different things and are never added up.",
        pictures=tuple(pictures),
        body=_counts(runs),
        affects=("fallback",),
    )


def _timeline(
    index: int, run: RunSummary, timeline: Timeline, runs: Sequence[RunSummary]
) -> Picture:
    windows = max(map(len, timeline.steps.values()), default=0)
    seconds, unit = unit_of(timeline.window_s * windows)
    middle = tuple((at + 0.5) * timeline.window_s / seconds for at in range(windows))
    order = sorted(timeline.steps, key=_order)
    series = tuple(
        Series(
            name=_words(name), kind=Kind.STACK, x=middle,
            y=tuple(float(n) for n in timeline.steps[name]), colour=_colour(name),
            pattern=_pattern(name, order),
        )
        for name in order
        if sum(timeline.steps[name]) or name == ACCEPTED
    )  # fmt: skip
    made = Picture(
        id=f"fallback-{index}",
        title=about(run, runs, _title(run)),
        how="Each bar is a window of time, parted by what became of its decode steps. A patch of "
        "one colour is a time in which something kept the drafter from working.",
        chart=Chart(
            series=series, x_title=f"{unit} since {clock(timeline.start_s)}",
            y_title="decode steps", axis=Axis.NUMBER, unit=Unit.COUNT,
        ),
        definitions=(REJECTED_ROUNDS, UNDRAFTED),
        note=f"{len(middle)} windows of {_length(timeline.window_s)} each, from "
        f"{moment(timeline.start_s)}.",
    )  # fmt: skip
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
    return f"no draft in {listed(parts)}; most often: {_words(most).removeprefix('no draft: ')}"


def _length(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def _order(name: str) -> tuple[int, str]:
    first = {ACCEPTED: 0, REJECTED: 1}
    deliberate = 2 if name in UndraftedReason.DELIBERATE else 3
    return first.get(name, deliberate), name


def _colour(name: str) -> str:
    if name == ACCEPTED:
        return "step-accepted"
    if name == REJECTED:
        return "step-rejected"
    return "step-deliberate" if name in UndraftedReason.DELIBERATE else "step-failed"


def _pattern(name: str, order: Sequence[str]) -> str:
    if name in (ACCEPTED, REJECTED):
        return {ACCEPTED: "", REJECTED: "/"}[name]
    return ("-", "x", ".", "\\", "|")[order.index(name) % 5]


_REASONS = {
    UndraftedReason.K_ZERO: "K = 0 by batch size",
    UndraftedReason.NO_DRAFT: "the drafter gave none",
}


def _words(name: str) -> str:
    if name == ACCEPTED:
        return "kept at least one drafted token"
    if name == REJECTED:
        return "rejected round"
    words = _REASONS.get(name, name.replace("_", " "))
    kind = " (on purpose)" if name in UndraftedReason.DELIBERATE else ""
    return f"no draft: {words}{kind}"


def _counts(runs: Sequence[RunSummary]) -> Markup:
    rows = []
    for run in runs:
        shares = run.fallback
        useful = shares.steps - shares.rejected_rounds - shares.undrafted
        rows.append(_row(run, _words(ACCEPTED), useful))
        rows.append(_row(run, _words(REJECTED), shares.rejected_rounds))
        rows += [_row(run, _words(name), count) for name, count in shares.by_reason.items()]
        if not shares.by_reason:
            rows.append(_row(run, "no draft", 0))
    head = ["run", "decode step", "share", "steps"]
    return by_run_table(
        head, rows, words=3, caption="Decode steps by what became of them", runs=len(runs)
    )


def _row(run: RunSummary, what: str, count: int) -> list[Markup | str]:
    share = count / run.fallback.steps if run.fallback.steps else 0.0
    bar = el("svg", el("rect", width=f"{100 * share:.1f}%", height="10"), class_="track",
             height="10", aria_hidden="true", focusable="false")  # fmt: skip
    cell = el("span", bar, percent(share), class_="share")
    return [run.label, what, cell, f"{count:,}"]
