"""How sure the drafter is."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.words import listed, number
from driftscope.metrics.confidence import ENTROPY, TOP1
from driftscope_reports import figures
from driftscope_reports.section import Panel, Section
from driftscope_reports.tables import DepthRow, by_depth


def section(analysis: Analysis) -> Section | None:
    """Confidence by depth; None when no run recorded any."""
    runs = analysis.runs
    top1 = [
        (i, run.label, run.confidence.top1) for i, run in enumerate(runs) if run.confidence.top1
    ]
    entropy = [
        (i, run.label, run.confidence.entropy)
        for i, run in enumerate(runs)
        if run.confidence.entropy
    ]
    panels = []
    if top1:
        panels.append(
            Panel(
                id="confidence-top1",
                caption="Confidence by depth",
                definition=TOP1,
                figure=figures.lines(top1, y_title="largest probability", share=True),
            )
        )
    if entropy:
        panels.append(
            Panel(
                id="confidence-entropy",
                caption="Entropy by depth",
                definition=ENTROPY,
                figure=figures.lines(entropy, y_title="nats"),
            )
        )
    if not panels:
        return None
    rows: list[DepthRow] = []
    for run in runs:
        rows.append((run.label, TOP1.title, run.confidence.top1))
        rows.append((run.label, f"{ENTROPY.title}, nats", run.confidence.entropy))
    parts = [f"{number(v[0])} to {number(v[-1])} ({name})" for _, name, v in top1]
    return Section(
        id="confidence",
        title=f"The drafter's confidence goes from {listed(parts)}"
        if parts
        else "Entropy by depth",
        how="This is what the drafter believes of its own tokens, not whether they were right. A "
        "drafter that loses the thread usually becomes less sure with depth; one that stays sure "
        "while acceptance falls is miscalibrated.",
        panels=tuple(panels),
        numbers=by_depth(rows),
        definitions=(TOP1, ENTROPY),
        affects="masses",
    )
