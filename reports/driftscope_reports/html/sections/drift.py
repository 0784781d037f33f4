"""Section on drift: every quantity over depth, on one axis."""

from __future__ import annotations

from driftscope.pipeline import Analysis
from driftscope_reports.html.parts.section import Section, Size, sized
from driftscope_reports.html.sections import acceptance, attention, confidence, hidden


def section(analysis: Analysis) -> Section:
    """Return acceptance, masses, hidden state and confidence by depth."""
    runs = analysis.runs
    marginal, conditional, *by_k = acceptance.pictures(runs)
    inside = [*attention.pictures(runs), *hidden.pictures(runs), *confidence.pictures(runs)]
    missing = (
        None
        if inside
        else "Nothing was measured inside the drafter, so only acceptance can be shown; masses, "
        "hidden state and confidence are not applicable."
    )
    heads = [p for p in inside if p.id.startswith("heads-")]
    large = [*[p for p in inside if p.id.startswith("attention-")], marginal]
    if len(large) % 2:
        large.append(conditional)
    small = [p for p in (conditional, *by_k, *inside) if p not in large and p not in heads]
    return Section(
        id="drift",
        name="The drift picture",
        lead="What changes from one guess of a chain to the next. Every picture has the same depth "
        "axis: point at a depth, or press the arrow keys in a picture, and it is marked in all.",
        pictures=(*large, *(sized(p, Size.SMALL) for p in small), *heads),
        affects=("masses", "acceptance"),
        missing=missing,
    )
