"""A chart as a plotly figure: a plain dictionary, drawn by the page's script or by plotly itself.

Colours are written as "@name". The page's script replaces them from CSS; `painted` does so in
Python.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from driftscope_reports.drawing.chart import (
    MARKED,
    Axis,
    Chart,
    Kind,
    Series,
    categories,
    is_number,
    span,
)
from driftscope_reports.drawing.palette import DASHES, LIGHT, MARKERS, scale_colour

Figure = dict[str, Any]
_NAME_LENGTH = 28
_FEW = 3
"""Most categories with which bars are kept narrow."""
_LOW = 240
"""Height in pixels up to which few grid lines are enough."""
_DIGITS = 5
"""Significant digits of a number in the page: more than a screen can show."""


def text(raw: str, length: int = _NAME_LENGTH) -> str:
    """Return an untrusted string escaped for plotly, which reads a little HTML in names and
    labels."""
    short = raw if len(raw) <= length else f"{raw[: length - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def figure(chart: Chart) -> Figure:
    """Return the complete plotly figure."""
    cells = [s for s in chart.series if s.kind is Kind.CELLS]
    highest = max((v for s in cells for v in s.y if v is not None and is_number(v)), default=1.0)
    traces = [_trace(s, chart) for s in chart.series if s.kind is not Kind.CELLS]
    traces += [_cells(s, row, highest) for row, s in enumerate(cells)]
    return {"data": traces, "layout": _layout(chart, cells)}


def painted(value: Any, colours: Mapping[str, str] = LIGHT) -> Any:
    """Return `value` with every "@name" replaced by its colour."""
    if isinstance(value, str):
        return colours.get(value[1:], value) if value.startswith("@") else value
    if isinstance(value, list):
        return [painted(item, colours) for item in value]
    if isinstance(value, dict):
        return {key: painted(item, colours) for key, item in value.items()}
    return value


def _trace(s: Series, chart: Chart) -> Figure:
    trace: Figure = {
        "name": text(s.name),
        "x": [text(x) if isinstance(x, str) else x for x in s.x],
        "y": [_short(y) for y in s.y],
        "hovertemplate": _hover(s, chart),
        **_KINDS[s.kind](s),
    }
    if s.notes:
        trace["customdata"] = [text(note, 80) for note in s.notes]
    if s.low:
        trace["error_y"] = _spread(s)
    return trace


def _line(s: Series) -> Figure:
    style = s.style % len(MARKERS)
    return {
        "type": "scatter",
        "mode": "lines+markers" if s.marked and len(s.x) <= MARKED else "lines",
        "line": {"color": f"@{s.colour}", "dash": DASHES[style], "width": 2.5},
        "marker": {"symbol": MARKERS[style], "size": 8, "color": f"@{s.colour}"},
    }


def _dashed(s: Series) -> Figure:
    line = {"color": f"@{s.colour}", "dash": "dash", "width": 2}
    return {"type": "scatter", "mode": "lines", "line": line}


def _area(s: Series) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "areas",
        "line": {"color": f"@{s.colour}", "width": 1.5},
        "fillcolor": f"@{s.colour}",
        "fillpattern": {"shape": s.pattern, "fgcolor": "@panel", "fillmode": "overlay", "size": 9},
    }


def _bar(s: Series) -> Figure:
    colours: Any = [f"@{name}" for name in s.colours] if s.colours else f"@{s.colour}"
    pattern = {"shape": s.pattern, "fgcolor": "@panel", "fillmode": "overlay", "size": 8}
    marker = {"color": colours, "pattern": pattern} if s.pattern else {"color": colours}
    return {"type": "bar", "marker": marker}


def _points(s: Series) -> Figure:
    marker = {
        "size": 8,
        "opacity": 0.55,
        "color": f"@{s.colour}",
        "symbol": MARKERS[s.style % len(MARKERS)],
    }
    return {"type": "scatter", "mode": "markers", "marker": marker}


_KINDS = {
    Kind.LINE: _line,
    Kind.DASHED: _dashed,
    Kind.AREA: _area,
    Kind.BAR: _bar,
    Kind.STACK: _bar,
    Kind.POINTS: _points,
}


def _cells(s: Series, row: int, highest: float) -> Figure:
    """Return a row of a heatmap as bars of height 1: the smallest plotly bundle has no heatmap
    trace."""
    known = [(x, y) for x, y in zip(s.x, s.y, strict=True) if y is not None and is_number(y)]
    return {
        "type": "bar",
        "name": text(s.name),
        "x": [x for x, _ in known],
        "y": [1 for _ in known],
        "base": row - 0.5,
        "width": 1,
        "offset": -0.5,
        "marker": {
            "color": [scale_colour(y / highest if highest else 0.0) for _, y in known],
            "line": {"width": 0},
        },
        "customdata": [_short(y) for _, y in known],
        "hovertemplate": "%{customdata}",
        "showlegend": False,
    }


def _spread(s: Series) -> Figure:
    return {
        "type": "data",
        "symmetric": False,
        "array": [_gap(high, y) for high, y in zip(s.high, s.y, strict=True)],
        "arrayminus": [_gap(y, low) for low, y in zip(s.low, s.y, strict=True)],
        "thickness": 1.4,
        "width": 3,
        "color": "@ink" if s.kind in (Kind.BAR, Kind.STACK) else f"@{s.colour}",
    }


def _gap(high: float | None, low: float | None) -> float | None:
    return _short(high - low) if is_number(high) and is_number(low) else None


def _hover(s: Series, chart: Chart) -> str:
    value = {"share": "%{y:.3f}", "count": "%{y:,.0f}", "ms": "%{y:.2f} ms"}.get(
        chart.unit, "%{y:.3f}"
    )
    return f"{value} %{{customdata}}" if s.notes else value


def _layout(chart: Chart, cells: list[Series]) -> Figure:
    ends = span(chart)
    y_axis: Figure = {"title": _title(chart.y_title), "range": list(ends.y), **_AXIS}
    if chart.unit == "share" and not cells:
        y_axis["tickformat"] = ".3~p"
    if chart.height <= _LOW:
        y_axis["nticks"] = 5
    if cells:
        every = max(1, len(cells) // 16)
        rows = list(range(0, len(cells), every))
        y_axis |= {
            "tickvals": rows,
            "ticktext": [text(cells[row].sign or cells[row].name, 12) for row in rows],
        }
    layout: Figure = {
        "height": chart.height + 20,
        "margin": {"l": 62, "r": 14, "t": 10, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "@ink"},
        "hovermode": "closest" if _single_points(chart) or cells else "x unified",
        "hoverlabel": {"bgcolor": "@panel", "font": {"color": "@ink"}},
        "showlegend": False,
        "barmode": "relative" if any(s.kind is Kind.STACK for s in chart.series) else "group",
        "bargap": 0.28,
        "xaxis": _x_axis(chart, ends.x),
        "yaxis": y_axis,
        "shapes": [*_shapes(chart)],
        "annotations": [*_notes(chart)],
        "dragmode": False,
    }
    if chart.axis is Axis.CATEGORY and len(categories(chart)) <= _FEW:
        layout["bargap"] = 0.5
    if any(s.kind is Kind.STACK for s in chart.series):
        layout["bargap"] = 0.08
    if cells:
        layout |= {"barmode": "overlay", "bargap": 0}
    return layout


def _title(words: str) -> Figure:
    return {"text": text(words, 60), "font": {"size": 13, "color": "@soft"}}


def _single_points(chart: Chart) -> bool:
    return any(s.kind is Kind.POINTS for s in chart.series)


def _x_axis(chart: Chart, ends: tuple[float, float]) -> Figure:
    axis: Figure = {"title": _title(chart.x_title), "range": list(ends), **_AXIS}
    if chart.axis is Axis.DEPTH:
        every = max(1, math.ceil(chart.depths / 12))
        axis |= {"dtick": every, "tick0": 1, "hoverformat": "d"}
    if chart.whole:
        axis |= {"dtick": max(1, math.ceil((ends[1] - ends[0]) / 12)), "tick0": 1}
    if chart.axis is Axis.CATEGORY:
        axis |= {"type": "category"}
    return axis


def _shapes(chart: Chart) -> list[Figure]:
    line = {"color": "@ink", "width": 1.2}
    out: list[Figure] = [
        {
            "type": "line",
            "x0": m.x,
            "x1": m.x,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": {**line, "dash": "dot"},
        }
        for m in chart.marks
    ]
    if chart.shade is not None:
        ends = {"x0": chart.shade[0], "x1": chart.shade[1], "y0": 0, "y1": 1, "yref": "paper"}
        fill = {"fillcolor": "@soft", "opacity": 0.13, "line": {"width": 0}, "layer": "below"}
        out.append({"type": "rect", **ends, **fill})
    if chart.level is not None:
        level = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "line": line}
        out.append({**level, "y0": chart.level, "y1": chart.level})
    return out


def _notes(chart: Chart) -> list[Figure]:
    ends = span(chart)
    middle = sum(ends.x) / 2
    marks = [
        {
            "x": m.x,
            "y": 0,
            "yref": "paper",
            "text": text(m.text, 40),
            "showarrow": False,
            "xanchor": "right" if m.x > middle else "left",
            "yanchor": "bottom",
            "yshift": 3 + 18 * (i % 3),
            "font": {"size": 12, "color": "@ink"},
            "bgcolor": "@panel",
        }
        for i, m in enumerate(chart.marks)
    ]
    return [*marks, *_area_names(chart)]


def _area_names(chart: Chart) -> list[Figure]:
    out, base = [], [0.0] * chart.depths
    for s in (s for s in chart.series if s.kind is Kind.AREA):
        high = [b + (y if is_number(y) else 0.0) for b, y in zip(base, s.y, strict=True)]
        inner = range(1, len(high) - 1) if len(high) > 2 else range(len(high))
        at = max(inner, key=lambda i: high[i] - base[i], default=None)
        if at is not None and high[at] - base[at] >= 0.07:
            out.append(
                {
                    "x": s.x[at],
                    "y": (high[at] + base[at]) / 2,
                    "text": text(s.name),
                    "showarrow": False,
                    "bgcolor": "@panel",
                    "borderpad": 2,
                    "font": {"size": 12, "color": "@ink"},
                }
            )
        base = high
    return out


_AXIS: Figure = {
    "gridcolor": "@grid",
    "linecolor": "@grid",
    "zeroline": False,
    "fixedrange": True,
}


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


__all__ = ["Figure", "figure", "painted", "text"]
