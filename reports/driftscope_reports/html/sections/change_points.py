"""Section parts on acceptance over time and its change points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftscope.analysis.closeup import Timeline
from driftscope.analysis.figures.change_points import ChangePoint, Changes
from driftscope.analysis.number_words import NOTHING, between, listed, number
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Mark, Series
from driftscope_reports.drawing.palette import colour
from driftscope_reports.html.parts.tables import table
from driftscope_reports.html.parts.timescale import clock, moment, unit_of
from driftscope_reports.markup import Markup
from driftscope_reports.model import Picture, Size, sized


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Course of one run over time."""

    index: int
    run: RunSummary
    timeline: Timeline
    changes: Changes | None

    @property
    def lasted_s(self) -> float:
        return self.timeline.window_s * len(self.timeline.tokens_per_round)


def picture(runs: Sequence[RunSummary]) -> Picture | None:
    """Return the picture of all runs, each from its own start; None if no round has a time."""
    courses = [
        _Course(index=i, run=run, timeline=run.closeup.timeline, changes=run.changes)
        for i, run in enumerate(runs)
        if run.closeup and run.closeup.timeline
    ]
    if not courses:
        return None
    seconds, unit = unit_of(max(course.lasted_s for course in courses))
    several = len(runs) > 1
    since = "the start of each run" if several else clock(courses[0].timeline.start_s)
    made = Picture(
        id="where-changes",
        title=f"Over time: {_all_seen(courses, seconds, unit)}",
        how="Each point is a window of time; each line is the mean of the requests between two "
        "changes, with its 95% interval. A dotted line marks a change of acceptance at the same "
        "mix of requests: random orders of the same clusters of requests hardly ever show one as "
        "large. A cluster is a session where sessions are recorded, and otherwise a request.",
        chart=Chart(
            series=tuple(s for c in courses for s in _series(c, seconds, several)),
            x_title=f"{unit} since {since}",
            y_title="tokens per round",
            axis=Axis.NUMBER,
            marks=tuple(m for c in courses for m in _marks(c, seconds, several)),
        ),
        definitions=(MEAN_LENGTH,),
        note=_note(courses),
        numbers=_numbers(courses) if any(c.changes for c in courses) else None,
    )
    return sized(made, Size.WIDE)


def _series(course: _Course, seconds: float, several: bool) -> list[Series]:
    """Return points by window and a line per level; only the first line is named in the legend."""
    name = f"{course.run.label}, " if several else ""
    window, style, shade = course.timeline.window_s, course.index, colour(course.index)
    known = [(n, y) for n, y in enumerate(course.timeline.tokens_per_round) if y is not None]
    points = Series(
        name=f"{name}windows of time",
        kind=Kind.POINTS,
        y=tuple(y for _, y in known),
        x=tuple((n + 0.5) * window / seconds for n, _ in known),
        colour=shade,
        style=style,
    )
    out = [points]
    for n, level in enumerate(course.changes.levels if course.changes else ()):
        low, high = (level.interval.low, level.interval.high) if level.interval else (None, None)
        ends = _since(course, level.start_s, seconds), _since(course, level.end_s, seconds)
        out.append(
            Series(
                name=f"{name}mean between changes",
                kind=Kind.LINE,
                marked=False,
                x=(ends[0], sum(ends) / 2, ends[1]),
                y=(level.mean_length,) * 3,
                low=(None, low, None),
                high=(None, high, None),
                colour=shade,
                style=style,
                tabled=not n,
            )
        )
    return out


def _since(course: _Course, time_s: float, seconds: float) -> float:
    return (time_s - course.timeline.start_s) / seconds


def _marks(course: _Course, seconds: float, several: bool) -> list[Mark]:
    name = f"{course.run.label}: " if several else ""
    return [
        Mark(
            x=_since(course, p.time_s, seconds),
            text=f"{name}{number(p.before)} → {number(p.after)}",
        )
        for p in (course.changes.points if course.changes else ())
    ]


def _all_seen(courses: Sequence[_Course], seconds: float, unit: str) -> str:
    """Return the observation, once if it is identical for all runs."""
    seen = [_seen(course, seconds, unit) for course in courses]
    if len(seen) < 2:
        return seen[0]
    if len(set(seen)) == 1:
        return f"{seen[0]} in {'both' if len(seen) == 2 else 'all'}"
    return "; ".join(f"{c.run.label}, {words}" for c, words in zip(courses, seen, strict=True))


def _seen(course: _Course, seconds: float, unit: str) -> str:
    if course.changes is None:
        whole = course.run.seen_whole
        return (
            f"too few requests {'to look for a change' if whole else 'seen whole to tell a change'}"
        )
    if not course.changes.points:
        why = "chance" if course.changes.raw is None else "the mix of requests"
        return f"acceptance changes by no more than {why} explains"
    parts = [_point(course, point, seconds, unit) for point in course.changes.points]
    return f"acceptance {listed(parts)}"


def _point(course: _Course, point: ChangePoint, seconds: float, unit: str) -> str:
    fell = "falls" if point.difference < 0 else "rises"
    at = _since(course, point.time_s, seconds)
    ends = f"from {number(point.before)} to {number(point.after)} tokens per round"
    return f"{fell} {ends} after {at:.3g} {unit}"


def _note(courses: Sequence[_Course]) -> str | None:
    all_changes = [course.changes for course in courses if course.changes]
    notes = []
    if any(changes.gradual for changes in all_changes):
        notes.append(
            "A slope over time fits better than a step: the moments approximate the slope."
        )
    if any(_by_mix(point) for changes in all_changes for point in changes.points):
        notes.append("Most of a change comes from a different mix of requests, see the numbers.")
    if any(changes.alike for changes in all_changes):
        notes.append(
            "Requests that follow each other are alike: session or traffic cannot be told from the "
            "drafter. Send session ids or a canary."
        )
    if any(changes.raw and not changes.points for changes in all_changes):
        notes.append("What moves is the mix of requests or sessions.")
    return " ".join(notes) or None


def _same_mix(point: ChangePoint) -> float | None:
    """Return the difference at the same mix of requests, or of labels if the
    requests determine none."""
    return point.same_mix if point.adjusted is None else point.adjusted


def _by_mix(point: ChangePoint) -> bool:
    left = _same_mix(point)
    return left is not None and abs(left) < abs(point.difference) / 2


def _signed(value: float | None, spread: Interval | None) -> str:
    return NOTHING if value is None else f"{value:+.2f}{between(spread)}"


def _numbers(courses: Sequence[_Course]) -> Markup:
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
    rows = [row for course in courses for row in _levels(course)]
    return table(head, rows, words=2, caption="Levels of acceptance over time")


def _levels(course: _Course) -> list[list[str]]:
    changes, out = course.changes, []
    for n, level in enumerate(changes.levels if changes else ()):
        point = changes.points[n - 1] if changes and n else None
        out.append(
            [
                course.run.label,
                moment(level.start_s),
                f"{level.requests:,}",
                f"{level.rounds:,}",
                f"{number(level.mean_length)}{between(level.interval)}",
                f"{point.difference:+.2f}{between(point.interval)}" if point else NOTHING,
                _signed(_same_mix(point), point.adjusted_interval) if point else NOTHING,
                _signed(point.anchored, point.anchored_interval) if point else NOTHING,
                f"{point.p:.3f}" if point else NOTHING,
            ]
        )
    return out
