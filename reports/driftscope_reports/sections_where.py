"""Section on where in the workload, and when, drift and losses occur."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from driftscope.analysis.circumstances import Group
from driftscope.analysis.closeup import Timeline
from driftscope.analysis.figures.change_points import ChangePoint, Changes
from driftscope.analysis.figures.requests import UNLABELLED
from driftscope.analysis.figures.results import Segment
from driftscope.analysis.number_words import NOTHING, between, count, listed, number
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import capital
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Axis, Mark, bars, figure, line, points
from driftscope_reports.model import Picture, Section, by_run_table, table
from driftscope_reports.sections_speed import clock, moment, unit_of
from driftscope_reports.tables import INSIDE_SEGMENTS, SEGMENT_COLUMNS, head_of, rows_of

_Runs = Sequence[RunSummary]

MAX_SEGMENTS = 40
"""Most segments of a run in the table, those with most rounds; more are in the JSON report."""
_DRAWN = 12
"""Most segments in a picture: more cannot be distinguished."""


def where(analysis: Analysis) -> Section:
    """Return the course over time, a picture for each circumstance, and a table of labels."""
    runs = analysis.runs
    # The criterion by which the runs were split.
    ways = dict.fromkeys(segment.by for run in runs for segment in run.segments)
    split = " or ".join("workload label" if way == "label" else way for way in ways)
    largest = [_by_size(run.segments)[:_DRAWN] for run in runs]
    pictures = [
        *_over_time(runs),
        *_groups_drawn(runs, largest, "segments", capital(split), split, f"its {split}"),
    ]
    for field, *words in _CIRCUMSTANCES:
        pictures += _groups_drawn(runs, [getattr(r.groups, field) for r in runs], field, *words)
    if all(segment.label == UNLABELLED for run in runs for segment in run.segments):
        return Section(
            id="where", name="Where", pictures=pictures, affects=("segments",), missing=_NO_LABEL
        )
    lengths = {
        run.label: [(s.mean_length, s.label) for s in run.segments if s.mean_length is not None]
        for run in runs
    }
    lead = "The run split by workload label."
    if (widest := _widest(lengths)) is not None:
        label, low, high = widest
        ends = f"{number(low[0])} tokens on {low[1]} and {number(high[0])} on {high[1]}"
        lead = f"{f'{label}: rounds' if len(runs) > 1 else 'Rounds'} yield {ends}."
    columns = ((split, lambda s: s.label), *SEGMENT_COLUMNS, *INSIDE_SEGMENTS)
    rows = [
        [run.label, *row]
        for run in runs
        for row in rows_of(columns, _by_size(run.segments)[:MAX_SEGMENTS])
    ]
    head = ["run", *head_of(columns)]
    rest = sum(max(len(run.segments) - MAX_SEGMENTS, 0) for run in runs)
    return Section(
        id="where",
        name="Where",
        lead=lead,
        pictures=pictures,
        below=[by_run_table(head, rows, caption="Segments of the workload", runs=len(runs))],
        affects=("segments",),
        missing=f"{rest:,} smaller segments are left out." if rest else None,
    )


_NO_LABEL = (
    "By label: not applicable, because no request has a workload label. Give requests a label "
    "(extra_args driftscope_label, or the header X-Driftscope-Label) to see which part of the "
    "traffic drifts."
)


_Named = tuple[float, str]
"""A figure, and the name of its part of the run."""


def _widest(by_run: Mapping[str, Sequence[_Named]]) -> tuple[str, _Named, _Named] | None:
    """Return the run whose parts differ most, its lowest part and its highest; None if no run has
    two parts."""
    known = [
        (max(p)[0] - min(p)[0], run, min(p), max(p)) for run, p in by_run.items() if len(p) > 1
    ]
    return max(known)[1:] if known else None


# ---- parts of the workload


def _by_size(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments, those with most rounds first."""
    return sorted(segments, key=lambda segment: (-segment.rounds, segment.label))


_CIRCUMSTANCES = (
    ("context", "Context length", "tokens of context, from", "how long the context was"),
    ("batch", "Batch size", "requests in the step", "how many requests were in the step"),
    ("temperature", "Temperature", "temperature", "the temperature of the request"),
    ("execution", "Execution", "how the drafter ran", "how the drafter was executed"),
    ("structured", "Tool calls, structured output", "requests", "whether a grammar lost drafts"),
    ("region", "Kind of text", "kind of text", "the kind of text that it drafts"),
    ("copied", "Copied text", "drafted text", "whether the text repeats an earlier passage"),
    ("finish", "How requests end", "finish reason", "how the request ended"),
)
"""Name of the groups in `RunSummary.groups`, heading, name of the axis, and what groups differ
in."""
ENOUGH = 5
"""Fewest requests with which a group is drawn: with fewer, the interval is uninformative."""


def _groups_drawn(
    runs: _Runs,
    whole: Sequence[Sequence[Group | Segment]],
    field: str,
    words: str,
    x_title: str,
    differ_in: str,
) -> Iterator[Picture]:
    """Yield the picture of the groups of each run; none if no run has two of enough requests."""
    drawn = [
        [
            (g.name if isinstance(g, Group) else g.label, g.mean_length, g.mean_length_interval)
            for g in groups
            if (g.requests >= ENOUGH and g.mean_length is not None)
        ]
        for groups in whole
    ]
    if max(map(len, drawn)) < 2:
        return
    small = sum(g.requests < ENOUGH for groups in whole for g in groups)
    lengths = {
        run.label: [(length or 0.0, _SHORT.get(name, name)) for name, length, _ in groups]
        for run, groups in zip(runs, drawn, strict=True)
    }
    widest = _widest(lengths)
    assert widest is not None  # noqa: S101  some run has two
    label, low, high = widest
    yield Picture(
        id=f"where-{field}",
        title=f"{words}: {f'{label}, ' if len(runs) > 1 else ''}from {number(low[0])} tokens per "
        f"round ({low[1]}) to {number(high[0])} ({high[1]})",
        how=f"Tokens per round by {differ_in}, with 95% intervals. If the intervals of a run do "
        "not overlap, the difference is more than chance explains.",
        chart=figure(
            [
                bars(
                    run.label,
                    [short(name) for name, *_ in groups],
                    [length for _, length, _ in groups],
                    run=index,
                    intervals=[interval for *_, interval in groups],
                )
                for index, (run, groups) in enumerate(zip(runs, drawn, strict=True))
                if groups
            ],
            x_title=x_title,
            y_title="tokens per round",
            axis=Axis.CATEGORY,
        ),
        definitions=(MEAN_LENGTH,),
        note=f"Not drawn: {count(small, 'group')} with fewer than {ENOUGH} requests."
        if small
        else None,
    )


_SHORT = {"that lost drafts to a grammar": "lost drafts", "the others": "others"}


def short(name: str) -> str:
    """Return the group's name on an axis, ranges by their start: "16,384 to 32,767 tokens" is
    "16k"."""
    match = re.match(r"([\d,]+) to [\d,]+", name)
    if not match:
        return _SHORT.get(name, name)
    start = int(match[1].replace(",", ""))
    return f"{start // 1024}k" if start >= 1024 else str(start)


# ---- over time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Course of one run over time; `unit_s` are the seconds of the axis's unit."""

    index: int
    run: RunSummary
    timeline: Timeline
    points: Sequence[ChangePoint]
    unit_s: float

    def since(self, time_s: float) -> float:
        """Return a Unix time as a value of the axis."""
        return (time_s - self.timeline.start_s) / self.unit_s


def _over_time(runs: _Runs) -> list[Picture]:
    """Return the picture of all runs, each from its own start; [] if no round has a time."""
    known = [
        (i, run, run.closeup.timeline)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    if not known:
        return []
    seconds, unit = unit_of(max(t.window_s * len(t.tokens_per_round) for _, _, t in known))
    courses = [
        _Course(
            index=i,
            run=run,
            timeline=timeline,
            points=run.changes.points if run.changes else (),
            unit_s=seconds,
        )
        for i, run, timeline in known
    ]
    several = len(runs) > 1
    since = "the start of each run" if several else clock(known[0][2].start_s)
    all_changes = [run.changes for _, run, _ in known if run.changes]
    return [
        Picture(
            id="where-changes",
            title=f"Over time: {_observed(courses, unit)}",
            how="Each point is a window of time; each line is the mean of the requests between two "
            "changes, with its 95% interval. A dotted line marks a change of acceptance at the "
            "same mix of requests: random orders of the same clusters of requests hardly ever show "
            "one as large. A cluster is a session where sessions are recorded, and otherwise a "
            "request.",
            chart=figure(
                [trace for course in courses for trace in _levels(course, several)],
                x_title=f"{unit} since {since}",
                y_title="tokens per round",
                axis=Axis.NUMBER,
                marks=[
                    Mark(
                        x=course.since(p.time_s),
                        text=f"{f'{course.run.label}: ' if several else ''}"
                        f"{number(p.before)} → {number(p.after)}",
                    )
                    for course in courses
                    for p in course.points
                ],
            ),
            definitions=(MEAN_LENGTH,),
            note=_notes(all_changes) or None,
            numbers=_level_numbers(courses) if all_changes else None,
            hero=True,
        )
    ]


def _notes(all_changes: Sequence[Changes]) -> str:
    """Return what else is to be known of the changes."""
    notes = []
    if any(changes.gradual for changes in all_changes):
        notes.append(
            "A slope over time fits better than a step: the moments approximate the slope."
        )
    moved = [point for changes in all_changes for point in changes.points]
    left = [(_same_mix(point), point.difference) for point in moved]
    if any(same is not None and abs(same) < abs(whole) / 2 for same, whole in left):
        notes.append("Most of a change comes from a different mix of requests, see the numbers.")
    if any(changes.neighbours_alike for changes in all_changes):
        notes.append(
            "Requests that follow each other are alike: session or traffic cannot be told from the "
            "drafter. Send session ids or a canary."
        )
    if any(changes.raw and not changes.points for changes in all_changes):
        notes.append("What moves is the mix of requests or sessions.")
    return " ".join(notes)


def _levels(course: _Course, several: bool) -> list[Any]:
    """Return points by window and a line per level; only the first line is named in the legend."""
    name = f"{course.run.label}, " if several else ""
    window = course.timeline.window_s / course.unit_s
    known = [(n, y) for n, y in enumerate(course.timeline.tokens_per_round) if y is not None]
    middle = [(n + 0.5) * window for n, _ in known]
    out = [points(f"{name}windows of time", middle, [y for _, y in known], run=course.index)]
    for n, level in enumerate(course.run.changes.levels if course.run.changes else ()):
        start, end = course.since(level.start_s), course.since(level.end_s)
        out.append(
            line(
                f"{name}mean between changes",
                [level.mean_length] * 3,
                x=[start, (start + end) / 2, end],
                run=course.index,
                intervals=(None, level.interval, None),
                marked=False,
                tabled=not n,
            )
        )
    return out


def _observed(courses: Sequence[_Course], unit: str) -> str:
    """Return what changed in each run, once if it is identical for all runs."""
    observed = []
    for course in courses:
        changes, points = course.run.changes, course.points
        if changes is None:
            look = (
                "to look for a change" if course.run.seen_whole else "seen whole to tell a change"
            )
            words = f"too few requests {look}"
        elif not points:
            why = "chance" if changes.raw is None else "the mix of requests"
            words = f"acceptance changes by no more than {why} explains"
        else:
            parts = [
                f"{'falls' if point.difference < 0 else 'rises'} from {number(point.before)} to "
                f"{number(point.after)} tokens per round after {course.since(point.time_s):.3g} "
                f"{unit}"
                for point in points
            ]
            words = f"acceptance {listed(parts)}"
        observed.append(words)
    if len(observed) > 1 and len(set(observed)) == 1:
        return f"{observed[0]} in {'both' if len(observed) == 2 else 'all'}"
    named = [
        f"{course.run.label}, {words}" for course, words in zip(courses, observed, strict=True)
    ]
    return "; ".join(named) if len(named) > 1 else observed[0]


def _same_mix(point: ChangePoint) -> float | None:
    """Return the difference at the same mix of requests, or of labels if the requests determine
    none."""
    return point.same_mix if point.adjusted is None else point.adjusted


def _level_numbers(courses: Sequence[_Course]) -> Markup:
    head = [
        "run",
        "requests that start from",
        "requests",
        "rounds",
        "tokens per round",
        "change",
        "at the same mix of requests",
        "on the same prompts",
        "p",
    ]
    rows = []
    for course in courses:
        for n, level in enumerate(course.run.changes.levels if course.run.changes else ()):
            change = [NOTHING] * 4
            if n:
                point = course.points[n - 1]
                change = [
                    _signed(point.difference, point.interval),
                    _signed(_same_mix(point), point.adjusted_interval),
                    _signed(point.anchored, point.anchored_interval),
                    f"{point.p:.3f}",
                ]
            rows.append(
                [
                    course.run.label,
                    moment(level.start_s),
                    f"{level.requests:,}",
                    f"{level.rounds:,}",
                    f"{number(level.mean_length)}{between(level.interval)}",
                    *change,
                ]
            )
    return table(head, rows, words=2, caption="Levels of acceptance over time")


def _signed(value: float | None, spread: Interval | None) -> str:
    return NOTHING if value is None else f"{value:+.2f}{between(spread)}"
