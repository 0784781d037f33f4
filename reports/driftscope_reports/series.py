"""How runs and classes of slots look in every picture: never told apart by colour alone.

Colours are names of CSS variables ("@run-0"), so that light, dark and print each have their own;
the page's script fills them in. The palette is Okabe and Ito's, made for colour-blind readers.
"""

from __future__ import annotations

from dataclasses import dataclass

MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
GLYPHS = ("●", "■", "◆", "▲", "✕", "★")
"""The markers as characters, for headings and tables."""


def colour(run: int) -> str:
    """Colour of the run with this index."""
    return f"@run-{run % len(MARKERS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MassClass:
    """One class of slots in the attention pictures, bottom of the stack first."""

    field: str
    """Attribute of `driftscope.analysis.summary.Attention`."""
    name: str
    colour: str
    pattern: str
    """Plotly fill pattern."""


MASS_CLASSES = (
    MassClass(field="self_mass", name="the chain itself", colour="@class-self", pattern="/"),
    MassClass(
        field="generated_mass", name="verified output", colour="@class-generated", pattern=""
    ),
    MassClass(field="prompt_mass", name="prompt", colour="@class-prompt", pattern="."),
    MassClass(field="sink_mass", name="sink", colour="@class-sink", pattern="x"),
    MassClass(field="null_mass", name="nothing (sink bias)", colour="@class-null", pattern="-"),
)
