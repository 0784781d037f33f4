"""The first screen as text: badge, headline, figures, claims and what to do."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftscope.boundary.text import shown
from driftscope.findings.first_screen import Action, FirstScreen, State
from driftscope.pipeline import Analysis

BADGES = {
    State.ACT: "ACT",
    State.LOOK: "LOOK",
    State.TOO_LITTLE: "TOO LITTLE DATA",
    State.NOTHING_SEEN: "NOTHING FOUND",
    State.HEALTHY: "HEALTHY",
}
"""Word of each state, before the headline."""


def plain(text: str) -> str:
    """Return `text` made safe to print: a label from a trace must not control the terminal."""
    return shown(text)


def first_screen(analysis: Analysis) -> list[RenderableType]:
    """Return the badge and the headline, the cause, and a line for each figure, topic and
    action."""
    screen = analysis.screen
    if screen is None:
        return [Text(plain(" ".join(analysis.verdict)), style="bold")]
    head = [Text(plain(f"[{BADGES[screen.state]}] {screen.headline}"), style="bold")]
    head += [Text(plain(words)) for words in _slices(analysis)]
    if screen.cause:
        head.append(Text(plain(f"But: {screen.cause}")))
    return [*head, _lines(analysis, screen)]


def _slices(analysis: Analysis) -> list[str]:
    return [
        f"Part of {run.label}: {run.slice.words(run.requests)}."
        for run in analysis.runs
        if run.slice is not None
    ]


def _lines(analysis: Analysis, screen: FirstScreen) -> Table:
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column()
    for figure in screen.figures:
        lines.add_row(plain(figure.value), Text(plain(f"{figure.unit}; {figure.reference}")))
    for name, texts in screen.titled():
        lines.add_row(name, Text("\n".join(map(plain, texts))))
    if not screen.claims and analysis.verdict[1:]:
        lines.add_row("Others", Text("\n".join(map(plain, analysis.verdict[1:]))))
    for place, action in enumerate(screen.actions, start=1):
        name = "What to do" if len(screen.actions) == 1 else f"What to do, {place}"
        lines.add_row(name, Text(_action(action)))
    return lines


def _action(action: Action) -> str:
    why = f" Why: {action.why}." if action.why else ""
    option = f"\n{plain(action.option)}" if action.option else ""
    return plain(f"{action.sentence}{why}") + option
