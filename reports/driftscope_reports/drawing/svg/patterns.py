"""Fill patterns that are distinguishable without colour."""

from __future__ import annotations

from driftscope_reports.drawing.chart import Series
from driftscope_reports.drawing.svg.frame import Frame
from driftscope_reports.markup import Markup, el

_STROKES = {
    "/": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "\\": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "x": "M0 0L8 8M0 8L8 0",
    "-": "M0 4H8",
    ".": "M4 3.2v1.6M3.2 4h1.6",
    "|": "M4 0V8",
}


def patterns(frame: Frame) -> Markup | None:
    """Return the patterns that the chart uses; None if it uses none."""
    drawn = {s.pattern for s in frame.chart.series if s.pattern}
    if not drawn:
        return None
    return el(
        "defs",
        [
            el(
                "pattern",
                el(
                    "path",
                    d=_STROKES[sign],
                    stroke=frame.paint("panel"),
                    stroke_width="1",
                    fill="none",
                    opacity="0.75",
                ),
                id=_name(frame, sign),
                width="8",
                height="8",
                patternUnits="userSpaceOnUse",
            )
            for sign in sorted(drawn)
        ],
    )


def filled(
    frame: Frame, series: Series, tag: str, *, colour: str = "", **shape: str
) -> list[Markup]:
    """Return a shape in the series' colour, or in `colour`, covered by the series' pattern."""
    out = [el(tag, fill=frame.paint(colour or series.colour), **shape)]
    if series.pattern:
        out.append(el(tag, fill=f"url(#{_name(frame, series.pattern)})", **shape))
    return out


def _name(frame: Frame, sign: str) -> str:
    return f"{frame.id}-p{ord(sign):x}"
