"""A chart as a static SVG: what is there before any script runs, without one, and on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from driftscope_reports.chart import Axis, Chart, Kind, Series, categories, is_number, span, ticks
from driftscope_reports.looks import DASH_ARRAYS, MARKER_PATHS, scale_colour, shown
from driftscope_reports.markup import Markup, el, join

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
Child_ = Markup | list[Markup] | None
_BAR_ROOM = 0.72
"""Share of its place that a bar takes."""
_LABEL_FROM = 0.07
"""Height, as a share of the picture, from which an area carries its name."""
_CLIP = 26

Paint = Callable[[str], str]
"""From the name of a colour to what stands in the SVG."""


def css(name: str) -> str:
    """The CSS variable, which light, dark and print define."""
    return name if name.startswith("#") else f"var(--{name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """From values to pixels."""

    chart: Chart
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    categories: dict[str, int]
    paint: Paint
    id: str

    def x(self, value: float | str) -> float:
        at = self.categories[str(value)] if self.chart.axis is Axis.CATEGORY else float(value)
        share = (at - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        value = min(max(value, self.y_low), self.y_high)
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return self.chart.height - BOTTOM - share * (self.chart.height - TOP - BOTTOM)


def svg(chart: Chart, *, id: str, paint: Paint = css, title: str = "") -> Markup:  # noqa: A002
    """The picture; `id` tells its patterns from those of other pictures in the page."""
    ends = span(chart)
    frame = _Frame(
        chart=chart, x_low=ends.x[0], x_high=ends.x[1], y_low=ends.y[0], y_high=ends.y[1],
        categories={name: at for at, name in enumerate(categories(chart))}, paint=paint, id=id,
    )  # fmt: skip
    return el(
        "svg",
        el("title", title) if title else None,
        _patterns(frame),
        _grid(frame),
        _series(frame),
        _level(frame),
        _marks(frame),
        _axis_titles(frame),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {chart.height}",
        font_family="system-ui, 'DejaVu Sans', sans-serif",
        font_size="13",
        aria_hidden="true" if not title else None,
        focusable="false",
    )


def _patterns(frame: _Frame) -> Markup | None:
    drawn = {s.pattern for s in frame.chart.series if s.pattern}
    if not drawn:
        return None
    lines = {
        "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6", "\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
        "x": "M0 0L8 8M0 8L8 0", "-": "M0 4H8", ".": "M4 3.2v1.6M3.2 4h1.6", "|": "M4 0V8",
    }  # fmt: skip
    return el("defs", [
        el(
            "pattern",
            el("path", d=lines[sign], stroke=frame.paint("panel"), stroke_width="1", fill="none",
               opacity="0.75"),
            id=f"{frame.id}-{_pattern_id(sign)}", width="8", height="8",
            patternUnits="userSpaceOnUse",
        )
        for sign in sorted(drawn)
    ])  # fmt: skip


def _pattern_id(sign: str) -> str:
    return f"p{ord(sign):x}"


def _grid(frame: _Frame) -> list[Markup]:
    chart, out = frame.chart, []
    if not any(s.kind is Kind.CELLS for s in chart.series):
        for value in ticks(frame.y_low, frame.y_high):
            y = f"{frame.y(value):.1f}"
            out.append(_line(LEFT, y, WIDTH - RIGHT, y, frame.paint("grid")))
            out.append(_text(LEFT - 8, frame.y(value) + 4, shown(value, chart.unit, axis=True),
                             frame, anchor="end"))  # fmt: skip
    else:
        every = max(1, len(chart.series) // 16)
        for row, series in enumerate(chart.series[::every]):
            out.append(_text(LEFT - 8, frame.y(row * every) + 4, series.name[:9], frame, "end"))
    base = frame.chart.height - BOTTOM
    out.append(_line(LEFT, base, WIDTH - RIGHT, base, frame.paint("grid")))
    for x, word in _x_ticks(frame):
        out.append(_text(x, base + 18, word, frame, anchor="middle"))
    return out


def _x_ticks(frame: _Frame) -> list[tuple[float, str]]:
    chart = frame.chart
    if chart.axis is Axis.DEPTH:
        every = max(1, -(-chart.depths // 12))
        return [(frame.x(d), str(d)) for d in range(1, max(chart.depths, 1) + 1, every)]
    if chart.axis is Axis.CATEGORY:
        names = list(frame.categories)
        every = max(1, -(-len(names) // 8))
        room = max(4, int(80 / max(len(names[::every]), 1)))
        return [(frame.x(name), _clipped(name, room)) for name in names[::every]]
    steps = ticks(frame.x_low, frame.x_high, 6)
    return [(frame.x(v), f"{v:g}") for v in steps if not chart.whole or v == round(v)]


def _axis_titles(frame: _Frame) -> list[Markup]:
    chart = frame.chart
    middle = (TOP + chart.height - BOTTOM) / 2
    across = _text((LEFT + WIDTH - RIGHT) / 2, chart.height - 8, chart.x_title, frame, "middle")
    up = el("text", chart.y_title, x="0", y="0", fill=frame.paint("soft"), text_anchor="middle",
            transform=f"translate(14 {middle:.0f}) rotate(-90)")  # fmt: skip
    return [across, up]


def _series(frame: _Frame) -> list[Child_]:
    out: list[Child_] = []
    stacked: dict[float | str, float] = {}
    bars = [s for s in frame.chart.series if s.kind is Kind.BAR]
    highest = max((v for s in frame.chart.series if s.kind is Kind.CELLS for v in s.y
                   if is_number(v)), default=1.0)  # fmt: skip
    labels: list[Markup] = []
    for row, series in enumerate(frame.chart.series):
        match series.kind:
            case Kind.LINE | Kind.DASHED:
                out.append(_polyline(frame, series))
            case Kind.AREA:
                out.append(_area(frame, series, stacked, labels))
            case Kind.BAR:
                out.append(_bars(frame, series, bars.index(series), len(bars)))
            case Kind.STACK:
                out.append(_stack(frame, series, stacked))
            case Kind.POINTS:
                out.append(_points(frame, series))
            case Kind.CELLS:
                out.append(_cells(frame, series, row, highest))
    return [*out, *labels]


def _polyline(frame: _Frame, series: Series) -> list[Markup]:
    colour = frame.paint("ink" if series.kind is Kind.DASHED else series.colour)
    dash = "6 4" if series.kind is Kind.DASHED else DASH_ARRAYS[series.style % len(DASH_ARRAYS)]
    out = [el("path", d=_path(frame, series), fill="none", stroke=colour, stroke_width="2.5",
              stroke_dasharray=dash or None, stroke_linejoin="round")]  # fmt: skip
    if series.low:
        out += _whiskers(frame, series, colour)
    few = len(series.x) <= _MARKED
    return [*out, *(_markers(frame, series) if few and series.kind is Kind.LINE else [])]


_MARKED = 24
"""Points up to which a line carries markers."""


def _path(frame: _Frame, series: Series) -> str:
    parts, pen = [], "M"
    for x, y in zip(series.x, series.y, strict=True):
        if not is_number(y):
            pen = "M"
            continue
        parts.append(f"{pen}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen = "L"
    return "".join(parts)


def _whiskers(frame: _Frame, series: Series, colour: str) -> list[Markup]:
    parts = [
        f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if is_number(low) and is_number(high)
    ]
    return [el("path", d="".join(parts), stroke=colour, stroke_width="1.2", fill="none")]


def _markers(frame: _Frame, series: Series) -> list[Markup]:
    shape = MARKER_PATHS[series.style % len(MARKER_PATHS)]
    spots = [
        f"M{frame.x(x):.1f} {frame.y(y):.1f}{shape}"
        for x, y in zip(series.x, series.y, strict=True)
        if is_number(y)
    ]
    return [el("path", d="".join(spots), fill=frame.paint(series.colour))]


def _points(frame: _Frame, series: Series) -> list[Markup]:
    """Round ends of lines without length: a tenth of what circles take."""
    spots = [
        f"M{frame.x(x):.0f} {frame.y(y):.0f}h0"
        for x, y in zip(series.x, series.y, strict=True)
        if is_number(y)
    ]
    return [
        el("path", d="".join(spots), stroke=frame.paint(series.colour), stroke_width="7",
           stroke_linecap="round", stroke_opacity="0.55")
    ]  # fmt: skip


def _area(
    frame: _Frame, series: Series, stacked: dict[float | str, float], labels: list[Markup]
) -> list[Markup]:
    low = [stacked.get(x, 0.0) for x in series.x]
    high = [a + (y if is_number(y) else 0.0) for a, y in zip(low, series.y, strict=True)]
    stacked.update(zip(series.x, high, strict=True))
    there = [(frame.x(x), frame.y(y)) for x, y in zip(series.x, high, strict=True)]
    back = [(frame.x(x), frame.y(y)) for x, y in zip(series.x, low, strict=True)][::-1]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*there, *back])
    labels += _area_label(frame, series, low, high)
    return _filled(frame, series, "polygon", points=points)


def _area_label(
    frame: _Frame, series: Series, low: Sequence[float], high: Sequence[float]
) -> list[Markup]:
    inner = range(1, len(low) - 1) if len(low) > 2 else range(len(low))
    at = max(inner, key=lambda i: high[i] - low[i], default=None)
    if at is None or high[at] - low[at] < _LABEL_FROM:
        return []
    x, y = frame.x(series.x[at]), frame.y((low[at] + high[at]) / 2)
    wide = 7.2 * len(series.name) + 8
    x = min(max(x, LEFT + wide / 2 + 2), WIDTH - RIGHT - wide / 2 - 2)
    box = el("rect", x=f"{x - wide / 2:.1f}", y=f"{y - 9:.1f}", width=f"{wide:.1f}", height="18",
             rx="3", fill=frame.paint("panel"), fill_opacity="0.88")  # fmt: skip
    return [box, _text(x, y + 4.5, series.name, frame, "middle", "ink")]


def _filled(frame: _Frame, series: Series, tag: str, **shape: str) -> list[Markup]:
    out = [el(tag, fill=frame.paint(series.colour), **shape)]
    if series.pattern:
        out.append(el(tag, fill=f"url(#{frame.id}-{_pattern_id(series.pattern)})", **shape))
    return out


def _place(frame: _Frame) -> float:
    """Pixels between neighbouring bars."""
    xs = sorted({frame.x(x) for s in frame.chart.series for x in s.x})
    gaps = [b - a for a, b in pairwise(xs)]
    return min(gaps, default=(WIDTH - LEFT - RIGHT) / 3)


def _bars(frame: _Frame, series: Series, number: int, of: int) -> list[Markup]:
    each = _BAR_ROOM * _place(frame) / of
    out: list[Markup] = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if not is_number(y):
            continue
        left = frame.x(x) + (number - of / 2) * each
        top, base = frame.y(max(y, 0.0)), frame.y(min(max(0.0, frame.y_low), frame.y_high))
        bottom = frame.y(min(y, 0.0)) if y < 0 else base
        name = series.colours[i] if series.colours else series.colour
        out += _rect(frame, name, series.pattern, left, top, 0.94 * each, max(bottom - top, 0.8))
        low, high = (series.low[i], series.high[i]) if series.low else (None, None)
        if is_number(low) and is_number(high):
            at = left + 0.47 * each
            out.append(el("path", d=f"M{at:.1f} {frame.y(low):.1f}V{frame.y(high):.1f}",
                          stroke=frame.paint("ink"), stroke_width="1.4"))  # fmt: skip
    return out


def _stack(frame: _Frame, series: Series, stacked: dict[float | str, float]) -> list[Markup]:
    each = min(_place(frame), (WIDTH - LEFT - RIGHT) / max(len(series.x), 1))
    bars = []
    for x, y in zip(series.x, series.y, strict=True):
        low = stacked.get(x, 0.0)
        if not is_number(y) or not y:
            continue
        stacked[x] = low + y
        ends = sorted((frame.y(low), frame.y(low + y)))
        left, wide = frame.x(x) - 0.46 * each, 0.92 * each
        bars.append(f"M{left:.1f} {ends[0]:.1f}h{wide:.1f}V{ends[1]:.1f}h-{wide:.1f}z")
    out = _filled(frame, series, "path", d="".join(bars))
    return [*out, *(_whiskers(frame, series, frame.paint("ink")) if series.low else [])]


def _rect(
    frame: _Frame, colour: str, pattern: str, x: float, y: float, width: float, height: float
) -> list[Markup]:
    shape = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    out = [el("rect", fill=frame.paint(colour), **shape)]
    if pattern:
        out.append(el("rect", fill=f"url(#{frame.id}-{_pattern_id(pattern)})", **shape))
    return out


def _cells(frame: _Frame, series: Series, row: int, highest: float) -> list[Markup]:
    """One path per colour: cells are many."""
    height, width = abs(frame.y(1) - frame.y(0)), _place(frame)
    by_colour: dict[str, list[str]] = {}
    for x, y in zip(series.x, series.y, strict=True):
        if is_number(y):
            at = f"M{frame.x(x) - width / 2:.1f} {frame.y(row) - height / 2:.1f}"
            cell = f"{at}h{width:.1f}v{height:.1f}h-{width:.1f}z"
            by_colour.setdefault(scale_colour(y / highest if highest else 0.0), []).append(cell)
    return [el("path", d="".join(cells), fill=name) for name, cells in sorted(by_colour.items())]


def _level(frame: _Frame) -> Markup | None:
    if frame.chart.level is None:
        return None
    y = f"{frame.y(frame.chart.level):.1f}"
    return _line(LEFT, y, WIDTH - RIGHT, y, frame.paint("ink"))


def _marks(frame: _Frame) -> list[Markup]:
    out = []
    for number, mark in enumerate(frame.chart.marks):
        x = frame.x(mark.x)
        out.append(_line(x, TOP, x, frame.chart.height - BOTTOM, frame.paint("ink"), "3 3"))
        left = x > WIDTH / 2
        y = frame.chart.height - BOTTOM - 6 - 17 * (number % 3)
        anchor = "end" if left else "start"
        out.append(_text(x + (-5 if left else 5), y, mark.text, frame, anchor, "ink"))
    return out


def _line(
    x1: float | str, y1: float | str, x2: float | str, y2: float | str, colour: str, dash: str = ""
) -> Markup:
    at = [v if isinstance(v, str) else f"{v:.1f}" for v in (x1, y1, x2, y2)]
    return el("path", d=f"M{at[0]} {at[1]}L{at[2]} {at[3]}", stroke=colour,
              stroke_dasharray=dash or None, fill="none")  # fmt: skip


def _text(
    x: float, y: float, words: str, frame: _Frame, anchor: str = "start", colour: str = "soft"
) -> Markup:
    return el("text", _clipped(words, 60), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor,
              fill=frame.paint(colour))  # fmt: skip


def _clipped(words: str, length: int = _CLIP) -> str:
    return words if len(words) <= length else f"{words[: length - 1]}…"


def legend(chart: Chart, *, paint: Paint = css) -> Markup | None:
    """Names of the series with the sign they are drawn with; None where one is enough."""
    entries = named(chart, paint=paint)
    if not entries:
        return None
    return el("ul", [el("li", sign, " ", name) for sign, name in entries], class_="legend")


def named(chart: Chart, *, paint: Paint = css) -> list[tuple[Markup, str]]:
    """The same as signs and names; empty where there is one series."""
    shown_ = [s for s in chart.series if s.kind is not Kind.CELLS and s.tabled]
    return [(_sign(s, paint), s.name) for s in shown_] if len(shown_) > 1 else []


_SWATCHES = {
    "/": "M2 13L11 0M11 13L20 0M18 13L26 1",
    "\\": "M2 0L11 13M11 0L20 13M18 0L26 12",
    "x": "M2 13L11 0M2 0L11 13M14 13L23 0M14 0L23 13",
    "-": "M0 4H26M0 9H26",
    "|": "M5 0V13M13 0V13M21 0V13",
    ".": "M4 4h2M12 4h2M20 4h2M8 9h2M16 9h2",
}
"""A few strokes of each pattern, as a legend shows it."""


def _sign(series: Series, paint: Paint) -> Markup:
    colour = paint("ink" if series.kind is Kind.DASHED else series.colour)
    inside: list[Markup]
    if series.kind in (Kind.LINE, Kind.DASHED):
        dash = "6 4" if series.kind is Kind.DASHED else DASH_ARRAYS[series.style % 6]
        inside = [el("path", d="M0 7H26", stroke=colour, stroke_width="2.5",
                     stroke_dasharray=dash or None)]  # fmt: skip
        if series.kind is Kind.LINE:
            inside.append(el("path", d=f"M0 0{MARKER_PATHS[series.style % 6]}", fill=colour,
                             transform="translate(13 7)"))  # fmt: skip
    else:
        inside = [el("rect", width="26", height="13", fill=colour)]
        if series.pattern:
            d = _SWATCHES.get(series.pattern, "")
            inside.append(el("path", d=d, stroke=paint("panel"), stroke_width="1.2", fill="none"))
    return el("svg", join(inside), width="26", height="14", aria_hidden="true", focusable="false")
