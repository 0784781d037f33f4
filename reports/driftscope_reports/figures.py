"""Pictures as plotly figures: plain dictionaries, drawn by the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from driftscope.analysis.interval import Interval
from driftscope.analysis.summary import Attention, ByDepth
from driftscope_reports.series import DASHES, MARKERS, MASS_CLASSES, colour

Figure = dict[str, Any]
Values = Sequence[float | None]

_LABEL_FROM = 0.07
"""Height from which an area is wide enough to carry its name."""
_NAME_LENGTH = 28


def text(raw: str) -> str:
    """An untrusted string for plotly, which reads a little HTML in names and labels."""
    short = raw if len(raw) <= _NAME_LENGTH else f"{raw[: _NAME_LENGTH - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def lines(
    runs: Sequence[tuple[int, str, Values]],
    *,
    y_title: str,
    share: bool = False,
    spread: Sequence[tuple[Interval, ...] | None] = (),
) -> Figure:
    """One line per run, over depth; `runs` holds (index, label, values by depth)."""
    traces = [
        _line(index, label, values, spread[n] if spread else None)
        for n, (index, label, values) in enumerate(runs)
    ]
    depths = max(len(values) for _, _, values in runs)
    layout = _layout(depths, y_title, share=share)
    layout["showlegend"] = len(runs) > 1
    return {"data": traces, "layout": layout}


def masses(attention: Attention) -> Figure:
    """Areas stacked to 1, the chain's own at the bottom with its no-drift expectation dashed."""
    traces: list[Figure] = []
    labels: list[Figure] = []
    base: Sequence[float] = ()
    expected = _stated(attention.no_drift_self_mass)
    for kind in MASS_CLASSES:
        values: ByDepth | None = getattr(attention, kind.field)
        if values is None:
            continue
        base = base or [0.0] * len(values)
        values = _fitting(base, values)
        floor = base
        if kind.field == "self_mass" and expected is not None:
            floor = expected  # the name must not cover the dashed line
        labels += _area_label(kind.name, floor, _sum(base, values))
        base = _sum(base, values)
        traces.append(_area(kind.name, kind.colour, kind.pattern, values))
    if expected is not None:
        traces.append(_expectation(expected))
        labels.append(_expectation_label(expected))
    layout = _layout(len(base), "share of attention", share=True)
    layout["annotations"] = labels
    layout["xaxis"]["range"] = [1, max(len(base), 2)]
    return {"data": traces, "layout": layout}


def _line(index: int, label: str, values: Values, spread: tuple[Interval, ...] | None) -> Figure:
    style = index % len(MARKERS)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text(label),
        "x": _depths(values),
        "y": _finite(values),
        "line": {"color": colour(index), "dash": DASHES[style], "width": 2.5},
        "marker": {"symbol": MARKERS[style], "size": 8, "color": colour(index)},
        "hovertemplate": "%{y:.3f}",
    }
    if spread:
        known = [(at, value) for at, value in zip(spread, values, strict=True) if value is not None]
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [at.high - value for at, value in known],
            "arrayminus": [value - at.low for at, value in known],
            "thickness": 1.2,
            "width": 3,
            "color": colour(index),
        }
    return trace


def _area(name: str, area_colour: str, pattern: str, values: ByDepth) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": _depths(values),
        "y": _finite(values),
        "stackgroup": "masses",
        "line": {"color": area_colour, "width": 1.5},
        "fillcolor": area_colour,
        "fillpattern": {"shape": pattern, "fgcolor": "@panel", "fillmode": "overlay", "size": 9},
        "hovertemplate": "%{y:.3f}",
    }


def _expectation(values: ByDepth) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "the chain itself, without drift",
        "x": _depths(values),
        "y": _finite(values),
        "line": {"color": "@ink", "dash": "dash", "width": 2.5},
        "hovertemplate": "%{y:.3f}",
    }


def _expectation_label(values: ByDepth) -> Figure:
    """Above the dashed line's end, inside the picture."""
    return {**_LABEL, "x": len(values), "y": values[-1], "text": "without drift"} | {
        "xanchor": "right",
        "yanchor": "bottom",
        "yshift": 4,
    }


def _area_label(name: str, low: Sequence[float], high: Sequence[float]) -> list[Figure]:
    """The area's name at its thickest inner depth, if it is thick enough there."""
    inner = range(1, len(low) - 1) if len(low) > 2 else range(len(low))
    at = max(inner, key=lambda i: high[i] - low[i])
    if not high[at] - low[at] >= _LABEL_FROM:
        return []
    return [{**_LABEL, "x": at + 1, "y": (low[at] + high[at]) / 2, "text": name}]


def _stated(expected: ByDepth | None) -> ByDepth | None:
    """None where no chain says anything: its context is all sink, or hides it."""
    return expected if expected is not None and all(map(math.isfinite, expected)) else None


def _fitting(base: Sequence[float], values: Sequence[float]) -> ByDepth:
    """`values` cut where the stack has reached 1: a mean over those layers only to which a class
    applies can be more than its share of all of them."""
    return tuple(min(value, max(1.0 - low, 0.0)) for low, value in zip(base, values, strict=True))


def _sum(low: Sequence[float], added: Sequence[float]) -> list[float]:
    """A class that does not apply at a depth adds nothing there."""
    return [a + b if math.isfinite(b) else a for a, b in zip(low, added, strict=True)]


_LABEL: Figure = {
    "showarrow": False,
    "bgcolor": "@panel",
    "borderpad": 2,
    "font": {"size": 12, "color": "@ink"},
}


def _layout(depths: int, y_title: str, *, share: bool) -> Figure:
    y_axis: Figure = {"title": {"text": y_title}, "rangemode": "tozero", **_AXIS}
    if share:
        y_axis |= {"range": [0, 1.02], "tickformat": ".0%"}
    return {
        "height": 320,
        "margin": {"l": 58, "r": 14, "t": 10, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "@ink"},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "@panel", "font": {"color": "@ink"}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "showlegend": False,
        "xaxis": {
            "title": {"text": "depth"},
            "dtick": max(1, math.ceil(depths / 12)),
            "tick0": 1,
            "range": [0.75, depths + 0.25],
            "hoverformat": "d",
            **_AXIS,
        },
        "yaxis": y_axis,
    }


_AXIS: Figure = {"gridcolor": "@grid", "linecolor": "@grid", "zerolinecolor": "@grid"}


def _depths(values: Values) -> list[int]:
    return list(range(1, len(values) + 1))


def _finite(values: Values) -> list[float | None]:
    return [
        round(value, 6) if value is not None and math.isfinite(value) else None for value in values
    ]
