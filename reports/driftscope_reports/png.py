"""Single pictures as PNG, for slides and pages that do not accept SVG."""

from __future__ import annotations

import re

from driftscope.errors import UsageError
from driftscope_reports.drawing.palette import LIGHT
from driftscope_reports.drawing.svg import named, svg
from driftscope_reports.html.parts.section import Picture
from driftscope_reports.markup import Markup, el, join

SCALE = 2.0
"""Pixels per point: sharp on current screens."""
_LINE = 20
_LEGEND, _NAME = 20, 48


def to_png(picture: Picture) -> bytes:
    """Return the picture with its title and legend, on white. Raises UsageError without the
    extra."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise UsageError(
            "--format png needs the package resvg-py; pip install 'driftscope[png]'"
        ) from error
    made: bytes = bytes(
        svg_to_bytes(svg_string=to_svg(picture), background=LIGHT["page"], zoom=SCALE)
    )
    return made


def to_svg(picture: Picture) -> str:
    """Return the picture as a complete SVG that contains its title, legend and colours."""
    width = picture.chart.width
    lines = _wrapped(picture.title, width // 10)
    legend, rows = _legend(named(picture.chart, paint=_paint), width)
    top = _LINE * len(lines) + _LEGEND * rows + 12
    height = top + picture.chart.height
    title = [
        el(
            "text",
            line,
            x="14",
            y=f"{_LINE * (n + 1)}",
            font_weight="bold",
            font_size="15",
            fill=LIGHT["ink"],
        )
        for n, line in enumerate(lines)
    ]
    drawing = svg(picture.chart, id=picture.id, paint=_paint)
    placed = Markup(
        re.sub(
            "^<svg ", f'<svg y="{top}" width="{width}" height="{picture.chart.height}" ', drawing
        )
    )
    return el(
        "svg",
        el("g", title),
        el("g", legend, transform=f"translate(14 {_LINE * len(lines) + 10})"),
        placed,
        xmlns="http://www.w3.org/2000/svg",
        width=f"{width}",
        height=f"{height}",
        viewBox=f"0 0 {width} {height}",
        font_family="'DejaVu Sans', sans-serif",
        font_size="13",
    )


def _legend(entries: list[tuple[Markup, str]], width: int) -> tuple[Markup, int]:
    """Return the legend in as many rows as it needs, and the number of rows."""
    out, x, row = [], 0.0, 0
    for sign, name in entries:
        short = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
        wide = 34 + 7.6 * len(short) + 14
        if x and x + wide > width - 20:
            x, row = 0.0, row + 1
        out.append(
            el(
                "g",
                sign,
                el("text", short, x="32", y="12", fill=LIGHT["ink"]),
                transform=f"translate({x:.0f} {_LEGEND * row})",
            )
        )
        x += wide
    return join(out), row + 1 if entries else 0


def _paint(name: str) -> str:
    return LIGHT.get(name, name)


def _wrapped(text: str, characters: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= characters and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return [line[:characters] for line in lines]
