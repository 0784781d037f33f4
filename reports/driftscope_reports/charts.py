"""The pictures of a report as plotly figures, and how a page draws them.

A picture is a `plotly.graph_objects.Figure`, made by a pure function from traces:

    figure([line("old", rates, intervals=spread)], x_title="depth", y_title="of all rounds")

Colours are CSS variables such as "var(--run-0)", defined in `assets/report.css`, so that light and
dark each have their own. Series never differ by colour alone: runs also differ by marker, dash and
fill pattern. `plain` makes of a figure the JSON that the page's script draws, `legend` its signs,
and `driftscope_reports.model.number_rows` the table of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

import plotly.graph_objects as go

from driftscope.analysis.statistics.intervals import Interval

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", ".", "x", "-", "\\")
"""Marker, dash and fill pattern of each run."""

Values = Sequence[float | None]
Intervals = Sequence[Interval | None]


class Axis(StrEnum):
    """Kind of the x axis."""

    DEPTH = "depth"
    """Depths 1 .. K: shared by all pictures, and highlighted in all of them at once."""
    NUMBER = "number"
    CATEGORY = "category"


class Unit(StrEnum):
    """Format of a y value in text."""

    SHARE = "share"
    NUMBER = "number"
    COUNT = "count"
    MS = "ms"


_HOVER = {Unit.COUNT: "%{y:,.0f}", Unit.MS: "%{y:.2f} ms"}


# ---- series


def colour(run: int) -> str:
    """Return the colour of the run with this index."""
    return f"run-{run % len(MARKERS)}"


def line(
    name: str,
    y: Values,
    *,
    x: Sequence[float] = (),
    run: int = 0,
    look: int | None = None,
    intervals: Intervals = (),
    marked: bool = True,
    tabled: bool = True,
) -> go.Scatter:
    """Return the line of the run with this index, over `x` or else over depth; few points carry
    markers. The colour is the run's; `look` chooses marker and dash of several lines of one
    run."""
    paint, at = _paint(colour(run)), (run if look is None else look) % len(MARKERS)
    return go.Scatter(
        name=name,
        x=list(x) or depths(y),
        y=list(y),
        mode="lines+markers" if marked and len(y) <= _MARKED else "lines",
        line={"color": paint, "dash": DASHES[at], "width": 2.5},
        marker={"symbol": MARKERS[at], "size": 8, "color": paint},
        error_y=_error_bars(y, intervals, paint),
        meta=_meta(intervals, tabled=tabled),
    )


def expectation(
    name: str,
    y: Values,
    *,
    x: Sequence[float | str] = (),
) -> go.Scatter:
    """Return a thin dashed line without markers, for what is expected or compared with."""
    paint = {"color": _paint("ink"), "dash": "dash", "width": 2}
    return go.Scatter(
        name=name,
        x=list(x) or depths(y),
        y=list(y),
        mode="lines",
        line=paint,
        meta={**_meta(()), "expected": True},
    )


def points(
    name: str, x: Sequence[float], y: Values, *, run: int = 0, notes: Sequence[str] = ()
) -> go.Scatter:
    """Return one marker per value; `notes` are shown on hover and in the table."""
    marker = {"symbol": MARKERS[run % len(MARKERS)], "color": _paint(colour(run)), "size": 8}
    return go.Scatter(
        name=name,
        x=list(x),
        y=list(y),
        mode="markers",
        marker={**marker, "opacity": 0.55},
        customdata=list(notes) or None,
        meta=_meta(()),
    )


def area(name: str, y: Values, *, colour: str, pattern: str) -> go.Scatter:
    """Return an area by depth, stacked on the areas before it."""
    return go.Scatter(
        name=name,
        x=depths(y),
        y=list(y),
        mode="lines",
        stackgroup="areas",
        line={"color": _paint(colour), "width": 1.5},
        fillcolor=_paint(colour),
        fillpattern={"shape": pattern, **_PATTERN},
        meta=_meta(()),
    )


def bars(
    name: str,
    x: Sequence[float | str],
    y: Values,
    *,
    run: int = 0,
    intervals: Intervals = (),
    colours: str | Sequence[str] = "",
    pattern: str | None = None,
) -> go.Bar:
    """Return bars in the colour and pattern of a run, or in other ones."""
    painted = [_paint(shade) for shade in colours] if isinstance(colours, list | tuple) else None
    shape = PATTERNS[run % len(PATTERNS)] if pattern is None else pattern
    return go.Bar(
        name=name,
        x=list(x),
        y=list(y),
        marker={
            "color": painted or _paint(str(colours) or colour(run)),
            "pattern": {"shape": shape, **_PATTERN} if shape else None,
        },
        error_y=_error_bars(y, intervals, _paint("ink")),
        meta=_meta(intervals),
    )


_MARKED = 24
"""Most points with which a line carries markers."""


def scaled(interval: Interval | None, factor: float) -> Interval | None:
    """Return an interval in another unit."""
    return interval and Interval.between(factor * interval.low, factor * interval.high)


def _meta(intervals: Intervals, *, tabled: bool = True) -> dict[str, Any]:
    ends = [None if interval is None else (interval.low, interval.high) for interval in intervals]
    return {"ends": ends, "tabled": tabled, "expected": False}


def _error_bars(y: Values, intervals: Intervals, paint: str) -> dict[str, Any] | None:
    if not any(intervals):
        return None
    known = [
        (v if is_number(v) else None, interval) for v, interval in zip(y, intervals, strict=True)
    ]
    return {
        "type": "data",
        "symmetric": False,
        "array": [i.high - v if i and v is not None else None for v, i in known],
        "arrayminus": [v - i.low if i and v is not None else None for v, i in known],
        "thickness": 1.4,
        "width": 3,
        "color": paint,
    }


def _paint(name: str) -> str:
    return f"var(--{name})"


_PATTERN = {"fgcolor": _paint("panel"), "fillmode": "overlay", "size": 8}
_TITLE = {"standoff": 6, "font": {"size": 13, "color": _paint("soft")}}
_NOTE = {
    "showarrow": False,
    "font": {"size": 12, "color": _paint("ink")},
    "bgcolor": _paint("panel"),
}


def is_number(value: float | None) -> TypeGuard[float]:
    """Return whether the value can be drawn."""
    return value is not None and math.isfinite(value)


def depths(values: Sequence[object]) -> list[int]:
    """Return the depths 1 .. K."""
    return list(range(1, len(values) + 1))


# ---- figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line with a label."""

    x: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A shaded range of y with a label."""

    low: float
    high: float
    text: str


def figure(
    traces: Sequence[Any],
    *,
    x_title: str,
    y_title: str,
    axis: Axis = Axis.DEPTH,
    unit: Unit = Unit.NUMBER,
    stacked: bool = False,
    marks: Sequence[Mark] = (),
    level: float | None = None,
    shade: tuple[float, float] | None = None,
    band: Band | None = None,
    from_zero: bool = True,
    whole: bool = False,
    named: bool = False,
    y_most: float | None = None,
) -> go.Figure:
    """Return the figure of these traces.

    `stacked` bars stand on each other. `level` is the y of a horizontal line, such as 0 for
    differences, and `shade` the ends of a shaded part of x. `whole` numbers have no tick between
    two integers. `named` shows the legend even of a single series, because its name explains its
    colour. `y_most` is the lowest upper end of y.
    """
    deepest = max((len(t.x or ()) for t in traces), default=0)
    for trace in traces:
        value = _HOVER.get(unit, "%{y:.3f}")
        trace.hovertemplate = f"{value} %{{customdata}}" if trace.customdata else value
    loose = any(t.mode == "markers" for t in traces if t.type == "scatter")
    y_axis = {"title": {"text": y_title, **_TITLE}, "nticks": 5, **_AXIS}
    levels = [*([] if level is None else [level]), *([band.low, band.high] if band else ())]
    ends = _y_range(traces, unit, levels, y_most, from_zero=from_zero, stacked=stacked)
    y_axis["range"] = ends
    if unit is Unit.SHARE:
        y_axis |= {"tickformat": ".3~p"} | ({"dtick": 0.25} if ends[1] == _WHOLE else {})
    return go.Figure(
        data=list(traces),
        layout={
            "template": go.layout.Template(),
            "margin": {"l": 62, "r": 14, "t": 10, "b": 42},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": _paint("ink")},
            "hovermode": "closest" if loose else "x unified",
            "hoverlabel": {"bgcolor": _paint("panel"), "font": {"color": _paint("ink")}},
            "showlegend": False,
            "barmode": "relative" if stacked else "group",
            "bargap": 0.08 if stacked else 0.28,
            "xaxis": _x_axis(traces, x_title, axis, deepest, whole=whole),
            "yaxis": y_axis,
            "shapes": _shapes(marks, level, shade, band),
            "annotations": [*_labels(marks, traces), *_area_names(traces)],
            "dragmode": False,
            "meta": {
                "axis": axis.value,
                "unit": unit.value,
                "depths": deepest,
                "named": named,
                "band": band and band.text,
                "x_title": x_title,
                "y_title": y_title,
            },
        },
    )


_AXIS = {
    "gridcolor": _paint("grid"),
    "linecolor": _paint("grid"),
    "zeroline": False,
    "fixedrange": True,
}
_FEW = 3
"""Most categories with which bars are kept narrow."""


def _x_axis(
    traces: Sequence[Any], title: str, axis: Axis, deepest: int, *, whole: bool
) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "title": {"text": title, **_TITLE},
        "showgrid": False,
        "automargin": True,
        **_AXIS,
    }
    values = [x for t in traces for x in t.x or ()]
    if axis is Axis.DEPTH:
        # Ends are identical in every picture, so that depths are aligned.
        every = max(1, math.ceil(deepest / 12))
        layout |= {"range": [0.5, max(deepest, 1) + 0.5], "dtick": every, "tick0": 1}
        layout["hoverformat"] = "d"
    elif axis is Axis.CATEGORY:
        few = len(set(values)) <= _FEW
        places = max(len(set(values)), 1)
        room = 0.6 if few and places > 1 else 0.5
        layout |= {"type": "category", "range": [-room, places - 1 + room]}
    elif whole and values:
        layout |= {"dtick": max(1, math.ceil((max(values) - min(values)) / 12)), "tick0": 1}
    return layout


def _y_range(
    traces: Sequence[Any],
    unit: Unit,
    levels: Sequence[float],
    y_most: float | None,
    *,
    from_zero: bool,
    stacked: bool,
) -> list[float]:
    """Return the ends of the y axis. Interval ends are cut at a multiple of the largest value:
    intervals of a handful of requests are wide and would hide the values."""
    stacks: dict[object, float] = {}
    values, ends = [*levels], []
    for trace in traces:
        for x, y in zip(trace.x or (), trace.y or (), strict=True):
            if is_number(y) and (stacked if trace.type == "bar" else trace.stackgroup):
                stacks[x] = stacks.get(x, 0.0) + y
            elif is_number(y):
                values.append(y)
        ends += [v for both in trace.meta["ends"] if both for v in both if is_number(v)]
    values += stacks.values()
    positive = from_zero and all(v >= 0 for v in values)
    if positive:
        ends = [min(max(v, 0.0), _REACH * max(values, default=0.0)) for v in ends]
    low, high = min([*values, *ends], default=0.0), max([*values, *ends], default=1.0)
    high = max(high, y_most or high)
    if positive and unit is Unit.SHARE:
        return [0.0, _WHOLE if high > _HALF else max(1.15 * high, 0.02)]
    if positive:
        return [0.0, 1.08 * high or 1.0]
    room = 0.08 * (high - low) or 0.5
    return [low - room, high + room]


_REACH = 1.6
"""Highest end of a shown interval, as a multiple of the highest value."""
_WHOLE = 1.02
"""Upper end of an axis of shares, with room for the line at 1."""
_HALF = 0.5
"""Largest share from which the axis extends to 1."""


def _shapes(
    marks: Sequence[Mark],
    level: float | None,
    shade: tuple[float, float] | None,
    band: Band | None,
) -> list[dict[str, Any]]:
    stroke = {"color": _paint("ink"), "width": 1.2}
    upright = {"y0": 0, "y1": 1, "yref": "paper"}
    out: list[dict[str, Any]] = [
        {"type": "line", "x0": m.x, "x1": m.x, **upright, "line": {**stroke, "dash": "dot"}}
        for m in marks
    ]
    fill = {"fillcolor": _paint("soft"), "opacity": 0.13, "line": {"width": 0}}
    if band is not None:
        across = {"x0": 0, "x1": 1, "xref": "paper"}
        out.append({"type": "rect", "y0": band.low, "y1": band.high, **across, **fill})
    if shade is not None:
        out.append({"type": "rect", "x0": shade[0], "x1": shade[1], **upright, **fill})
    if level is not None:
        ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": level, "y1": level}
        out.append({"type": "line", **ends, "line": stroke})
    return out


def _labels(marks: Sequence[Mark], traces: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the labels of vertical lines, which alternate in height."""
    values = [x for t in traces for x in t.x or () if not isinstance(x, str)]
    middle = (min(values) + max(values)) / 2 if values else 0.0
    return [
        {
            "text": m.text,
            **_NOTE,
            "x": m.x,
            "y": 0,
            "yref": "paper",
            "xanchor": "right" if m.x > middle else "left",
            "yanchor": "bottom",
            "yshift": 3 + 18 * (at % 3),
        }
        for at, m in enumerate(marks)
    ]


def _area_names(traces: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the name of each area that is wide enough to carry it."""
    out, base = [], [0.0] * max((len(t.x or ()) for t in traces), default=0)
    for area_ in (t for t in traces if t.type == "scatter" and t.stackgroup):
        high = [b + (y if is_number(y) else 0.0) for b, y in zip(base, area_.y, strict=True)]
        inner = range(1, len(high) - 1) if len(high) > 2 else range(len(high))
        at = max(inner, key=lambda i: high[i] - base[i], default=None)
        if at is not None and high[at] - base[at] >= _LABELLED:
            place = {"x": area_.x[at], "y": (high[at] + base[at]) / 2}
            out.append({"text": area_.name, **_NOTE, **place, "borderpad": 2})
        base = high
    return out


_LABELLED = 0.07
"""Smallest height of an area, as a share of the picture, at which it carries its name."""


def has_values(made: go.Figure) -> bool:
    """Return whether any series has a value, apart from what it is compared with."""
    values = [y for trace in made.data if not trace.meta["expected"] for y in trace.y or ()]
    return any(map(is_number, values))


# ---- what a page and a notebook make of a figure


def plain(made: go.Figure, colours: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a figure as plain JSON: numbers with the digits that a screen can show, names clipped
    and escaped, because plotly reads a little HTML in them; with `colours` in place of the CSS
    variables."""
    content = made.to_plotly_json()
    content["layout"].pop("template", None)
    return {
        "data": [_plain(trace, "", colours or {}) for trace in content["data"]],
        "layout": _plain(content["layout"], "", colours or {}),
    }


_CLIPPED = {"name": 28, "x": 28, "ticktext": 12, "customdata": 80, "text": 60}
"""Longest text under these keys, which comes from a trace."""
_DIGITS = 5
"""Significant digits of a number in the page."""


def _plain(value: Any, key: str, colours: dict[str, str]) -> Any:
    if isinstance(value, str):
        if key in _CLIPPED:
            return escaped(value, _CLIPPED[key])
        return colours.get(value[6:-1], value) if value.startswith("var(--") else value
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(v, name, colours) for name, v in value.items() if name != "meta"}
    return [_plain(v, key, colours) for v in value] if isinstance(value, list | tuple) else value


def escaped(raw: str, length: int) -> str:
    """Return an untrusted string, clipped and escaped for plotly."""
    short = raw if len(raw) <= length else f"{raw[: length - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A series in the legend: how it looks and what it means."""

    name: str
    colour: str
    dash: str = ""
    marker: str = ""
    pattern: str = ""
    filled: bool = False


def legend(made: go.Figure) -> list[Sign]:
    """Return the signs of the series, [] for a single one that needs no name."""
    shown = [trace for trace in made.data if trace.meta["tabled"]]
    meta = made.layout.meta
    signs = []
    for trace in shown if len(shown) > 1 or meta["named"] else ():
        if trace.type == "bar" or trace.stackgroup:
            bar = trace.type == "bar"
            paint = trace.marker.color if bar else trace.fillcolor
            shape = (trace.marker.pattern if bar else trace.fillpattern).shape or ""
            signs.append(Sign(name=trace.name, colour=paint, pattern=shape, filled=True))
            continue
        sign = Sign(
            name=trace.name,
            colour=trace.line.color or trace.marker.color,
            dash=trace.line.dash if "lines" in trace.mode else "",
            marker=trace.marker.symbol if "markers" in trace.mode else "",
        )
        signs.append(sign)
    if meta["band"]:
        signs.append(Sign(name=meta["band"], colour=_paint("grid"), filled=True))
    return signs
