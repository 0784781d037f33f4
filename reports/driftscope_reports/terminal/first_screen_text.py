"""The first screen as text: badge, headline, figures, claims and what to do."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftscope.analysis.number_words import listed
from driftscope.boundary.text import shown
from driftscope.findings.finding import Finding
from driftscope.findings.first_screen import FirstScreen, State
from driftscope.pipeline import Analysis

BADGES = {
    State.ACT: "ACT",
    State.LOOK: "LOOK",
    State.TOO_LITTLE: "TOO LITTLE DATA",
    State.NOTHING_SEEN: "NOTHING FOUND",
    State.HEALTHY: "HEALTHY",
}
"""Word of each state, before the headline."""


def first_screen(analysis: Analysis) -> list[RenderableType]:
    """Return the badge and the headline, the most urgent finding, and a line for each figure,
    topic and action."""
    screen = analysis.screen
    head = [Text(shown(f"[{BADGES[screen.state]}] {screen.headline}"), style="bold")]
    head += [Text(shown(words)) for words in _slices(analysis)]
    if screen.subject is not None:
        head.append(Text(shown(f"But: {screen.cause.rstrip('.')} {certainty(screen.subject)}.")))
    return [*head, _lines(screen)]


def certainty(finding: Finding) -> str:
    """Return confidence and cost in brackets."""
    cost = f", costs {finding.cost_tps:,.1f} tokens/s" if finding.cost_tps else ""
    return f"(confidence {finding.confidence}{cost})"


def _slices(analysis: Analysis) -> list[str]:
    return [
        f"Part of {run.label}: {run.slice.words(run.requests)}."
        for run in analysis.runs
        if run.slice is not None
    ]


def _lines(screen: FirstScreen) -> Table:
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column()
    for figure in screen.figures:
        lines.add_row(shown(figure.value), Text(shown(f"{figure.unit}; {figure.reference}")))
    for topic, texts in screen.lines:
        lines.add_row(topic.words, Text("\n".join(map(shown, texts))))
    for place, action in enumerate(screen.actions, start=1):
        name = "What to do" if len(screen.actions) == 1 else f"What to do, {place}"
        lines.add_row(name, Text("\n".join(map(shown, _action(screen, action)))))
    return lines


def _action(screen: FirstScreen, action: Finding) -> list[str]:
    """Return the advice, its reason if that is not told yet, the option, and causes to check."""
    about = f" ({listed(action.runs)})" if screen.several and action.runs else ""
    sure = f" {certainty(action)}" if action.severity else ""
    told = screen.is_told(action) or not action.title
    why = f"{sure}." if action == screen.lead else ""
    if not told:
        why = f". Why: {action.titled}{about}{sure}."
    option = [action.option] if action.option else []
    advice = action.short_advice
    return [f"{advice.removesuffix('.')}{why}" if why else advice, *option, *causes(action)]


def causes(finding: Finding) -> list[str]:
    """Return the causes to check, in order, and those that are ruled out."""
    lines = []
    for place, suspect in enumerate(finding.causes, start=1):
        seen = f" [{suspect.seen}]" if suspect.seen else ""
        lines.append(f"{place:>2}.{'*' if suspect.supported else ' '}{suspect.cause}{seen}")
        lines.append(f"    check: {suspect.check}")
    if any(suspect.supported for suspect in finding.causes):
        lines.append("* supported by this run's recording")
    return lines + [f"ruled out: {each.cause} [{each.seen}]" for each in finding.ruled_out]
