"""How runs and classes of slots look in every picture: never told apart by colour alone.

The palette is Okabe and Ito's, made for colour-blind readers, with each colour dark (or light)
enough to be seen on the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driftscope_reports.drawing.chart import Unit

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GLYPHS = ("●", "■", "◆", "▲", "✕", "★")
"""The markers as characters, for headings and tables."""
PATTERNS = ("", "/", ".", "x", "-", "\\")
"""Of bars, by run."""
DASH_ARRAYS = ("", "8 4", "2 4", "8 3 2 3", "14 5", "14 4 2 4")
"""The dashes for SVG."""
MARKER_PATHS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "m-3.6-3.6h7.2v7.2h-7.2z",
    "m0-5l5 5l-5 5l-5-5z",
    "m0-5l4.6 8.6h-9.2z",
    "m-4-2.4l1.6-1.6 2.4 2.4 2.4-2.4 1.6 1.6-2.4 2.4 2.4 2.4-1.6 1.6-2.4-2.4-2.4 2.4-1.6-1.6z",
    "m0-5.4l1.4 3.6l3.8.1l-3 2.4l1 3.7l-3.2-2.2l-3.2 2.2l1-3.7l-3-2.4l3.8-.1z",
)
"""The markers around the point that the pen is at."""
LIGHT: Mapping[str, str] = {
    "page": "#ffffff",
    "panel": "#ffffff",
    "ink": "#1b1f24",
    "soft": "#57606a",
    "grid": "#d8dee4",
    "raised": "#f6f8fa",
    "link": "#0b5cad",
    "run-0": "#0072b2",
    "run-1": "#c04f00",
    "run-2": "#007f5f",
    "run-3": "#b0568b",
    "run-4": "#8a6d00",
    "run-5": "#5b5bb5",
    "class-self": "#d55e00",
    "class-generated": "#009e73",
    "class-prompt": "#56b4e9",
    "class-sink": "#0072b2",
    "class-null": "#999999",
    "step-accepted": "#009e73",
    "step-rejected": "#d55e00",
    "step-deliberate": "#56b4e9",
    "step-failed": "#b0568b",
    "step-prefill": "#999999",
    "worse": "#b3261e",
    "better": "#0b5cad",
    "same": "#6b7480",
    "apart": "#6f4bb0",
    "high": "#b3261e",
    "medium": "#8a5000",
    "info": "#0b5cad",
    "good": "#1a7f4b",
}
DARK: Mapping[str, str] = {
    "page": "#0f1318",
    "panel": "#0f1318",
    "ink": "#e8ebef",
    "soft": "#a3adb8",
    "grid": "#333c46",
    "raised": "#181e25",
    "link": "#7cb8ff",
    "run-0": "#56b4e9",
    "run-1": "#f08a3c",
    "run-2": "#2fc79a",
    "run-3": "#e29bc4",
    "run-4": "#f0e442",
    "run-5": "#a9a9ff",
    "class-self": "#d55e00",
    "class-generated": "#008b66",
    "class-prompt": "#3f93c4",
    "class-sink": "#0f5f92",
    "class-null": "#777777",
    "step-accepted": "#008b66",
    "step-rejected": "#d55e00",
    "step-deliberate": "#3f93c4",
    "step-failed": "#c678a6",
    "step-prefill": "#777777",
    "worse": "#ff8a80",
    "better": "#7cb8ff",
    "same": "#98a2ad",
    "apart": "#c5a5ff",
    "high": "#ff8a80",
    "medium": "#ffbe5c",
    "info": "#7cb8ff",
    "good": "#63d69b",
}


def variables(colours: Mapping[str, str]) -> str:
    """The palette as CSS."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def colour(run: int) -> str:
    """Colour of the run with this index."""
    return f"run-{run % len(MARKERS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MassClass:
    """One class of slots in the attention pictures, bottom of the stack first."""

    field: str
    """Attribute of `driftscope.analysis.summary.run_summary.Attention`."""
    name: str
    colour: str
    pattern: str
    """Plotly fill pattern."""


MASS_CLASSES = (
    MassClass(field="self_mass", name="the chain itself", colour="class-self", pattern="/"),
    MassClass(field="generated_mass", name="verified output", colour="class-generated", pattern=""),
    MassClass(field="prompt_mass", name="prompt", colour="class-prompt", pattern="."),
    MassClass(field="sink_mass", name="sink", colour="class-sink", pattern="x"),
    MassClass(field="null_mass", name="nothing (sink bias)", colour="class-null", pattern="-"),
)

VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five points of viridis, which keeps its order in grey and for colour-blind readers."""
_LEVELS = 64
"""Colours of the scale: few, so that pages stay small."""


def scale_colour(share: float) -> str:
    """Colour of a cell, 0 dark to 1 bright."""
    at = round(min(max(share, 0.0), 1.0) * _LEVELS) / _LEVELS * (len(VIRIDIS) - 1)
    low = min(int(at), len(VIRIDIS) - 2)
    mixed = [
        round(a + (b - a) * (at - low)) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    ]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def format_value(value: float | None, unit: Unit, *, axis: bool = False) -> str:
    """A value of a picture in words: short on an axis, to three digits in a table."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit is Unit.COUNT:
        return f"{value:,.0f}"
    if unit is Unit.SHARE and axis:
        return f"{100 * value:.3g}%"
    if axis:
        return f"{round(value, 9):,g}"
    return f"{value:.2f}" if unit is Unit.MS else f"{value:.3f}"
