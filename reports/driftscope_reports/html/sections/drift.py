"""Section on drift: every quantity over depth, on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import NOTHING, times
from driftscope.analysis.statistics.drift import Answer
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.rules_attention import attention_claim
from driftscope.pipeline import Analysis
from driftscope_reports.html.parts.run_series import by_run
from driftscope_reports.html.sections import (
    acceptance,
    attention,
    attention_drift,
    confidence,
    hidden,
)
from driftscope_reports.markup import el
from driftscope_reports.model import Section


def section(analysis: Analysis) -> Section:
    """Return acceptance, masses, hidden state and confidence by depth."""
    runs = analysis.runs
    inside = [*attention.pictures(runs), *hidden.pictures(runs), *confidence.pictures(runs)]
    missing = (
        None
        if inside
        else "Nothing was measured inside the drafter, so only acceptance can be shown; attention "
        "masses, hidden state and confidence are not applicable."
    )
    heads = [p for p in inside if p.id.startswith("heads-")]
    moved = attention_drift.pictures(runs)
    areas = [p for p in inside if p.id.startswith("attention-")]
    rest = [p for p in (*acceptance.pictures(runs), *inside) if p not in areas and p not in heads]
    return Section(
        id="drift",
        name="The drift picture",
        lead="Point at a depth, or press the arrow keys in a picture, to mark that depth in all "
        "pictures of this page.",
        conclusion=_conclusion(runs),
        pictures=(*moved, *areas, *rest, *heads),
        above=el("div", attention_drift.claims(runs)) if inside else None,
        affects=("masses", "acceptance"),
        missing=missing,
    )


def _conclusion(runs: Sequence[RunSummary]) -> str:
    """Return in short whether attention drifts and the hidden state grows."""
    attention = by_run(runs, [_DRIFTS[attention_claim(run).answer] for run in runs])
    growth = [times(run.hidden.growth) for run in runs]
    if all(each == NOTHING for each in growth):
        return f"Attention drift over depth: {attention}."
    return f"Attention drift over depth: {attention}. Hidden state: {by_run(runs, growth)}."


_DRIFTS = {Answer.DRIFT: "yes", Answer.NO_DRIFT: "no", Answer.CANNOT_TELL: "cannot tell"}
