"""The evidence by depth as a picture: one panel a figure, one line a drafter and seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftscope_lab.phenomenon.conditions import AS_TRAINED
from driftscope_lab.phenomenon.tables import BY_DEPTH, Evidence

WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 42, 12, 34, 34
COLUMNS, LEGEND = 2, 28
COLOURS = ("#c2410c", "#1d4ed8")
"""Colour of each drafter; the first is EAGLE-3."""
DASHES = ("", "6 3", "1.5 3")
"""Pattern of each drafter's lines, so that they differ without colour too: seeds in turn."""


def svg(evidence: Evidence) -> str:
    """Return the picture of the figures in the trained form: each seed's line by itself."""
    rows = -(-len(BY_DEPTH) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + LEGEND
    drafters = list(next(iter(evidence.values())))
    size, font = f'viewBox="0 0 {width} {height}"', 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>Figures by depth of {' and '.join(drafters)}, a line for each seed</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(drafters),
    ]
    for at, (figure, words) in enumerate(BY_DEPTH.items()):
        x, y = at % COLUMNS * WIDTH, at // COLUMNS * HEIGHT + LEGEND
        parts += [f'<g transform="translate({x} {y})">', *_panel(evidence, figure, words), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(drafters: Sequence[str]) -> Iterator[str]:
    for at, drafter in enumerate(drafters):
        x = LEFT + at * 110
        yield f'<path d="M{x} 16h24" stroke="{COLOURS[at]}" stroke-width="2"/>'
        yield f'<text x="{x + 30}" y="20">{drafter}</text>'


def _panel(evidence: Evidence, figure: str, words: str) -> Iterator[str]:
    lines = [
        (drafter, seed, runs[name].sums[AS_TRAINED].by_depth(figure).value.tolist())
        for seed, runs in enumerate(evidence.values())
        for drafter, name in enumerate(runs)
    ]
    depths = len(lines[0][2])
    top = max(max(values) for _, _, values in lines) * 1.05
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    yield f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{words}</text>'
    for tick in (0.0, top / 2, top):
        y = TOP + down * (1 - tick / top)
        yield f'<path d="M{LEFT} {y:.1f}h{across}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:.2g}</text>'
    for depth in range(depths):
        x = LEFT + across * depth / (depths - 1)
        yield f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{depth + 1}</text>'
    yield f'<text x="{LEFT + across / 2}" y="{HEIGHT - 4}" text-anchor="middle">depth</text>'
    for drafter, seed, values in lines:
        points = " ".join(
            f"{LEFT + across * depth / (depths - 1):.1f},{TOP + down * (1 - value / top):.1f}"
            for depth, value in enumerate(values)
        )
        yield (
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[drafter]}" '
            f'stroke-width="1.8" stroke-dasharray="{DASHES[seed % len(DASHES)]}"/>'
        )
