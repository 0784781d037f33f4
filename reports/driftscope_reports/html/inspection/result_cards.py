"""Cards of what the checks and the trial of a checkpoint found, errors first."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.inspect.checks.check_result import CheckResult, Level
from driftscope.inspect.inspection import Inspection
from driftscope_reports.markup import Markup, el
from driftscope_reports.page import part

LEVELS = {
    Level.ERROR: ("▲ error", "high"),
    Level.WARNING: ("◆ warning", "medium"),
    Level.NOTE: ("ℹ note", "info"),
}
"""Sign, word and CSS class of each level, so that it is never shown by colour alone."""


def cards(inspections: Sequence[Inspection], names: Sequence[str]) -> Markup:
    """Return the section of results, by drafter if there are two."""
    several = len(inspections) > 1
    parts = [
        [el("h3", name) if several else None, _of(each)]
        for each, name in zip(inspections, names, strict=True)
    ]
    return el(
        "section",
        el("h2", "What was found, and what to change", id="findings-heading"),
        parts,
        id="findings",
        aria_labelledby="findings-heading",
    )


def _of(inspection: Inspection) -> Markup:
    if not inspection.results:
        return el("p", f"Nothing, in {inspection.checks} checks.")
    return el("div", [_card(each) for each in inspection.results], class_="findings")


def _card(result: CheckResult) -> Markup:
    words, name = LEVELS[result.level]
    return el(
        "article",
        el("h3", el("span", words, class_="severity"), " ", result.title),
        el("p", el("b", "Found: "), result.there),
        el("p", el("b", "Expected: "), result.expected),
        el("p", el("b", "By: "), result.rule),
        [el("p", el("b", "Change:")), part("to_copy", result.change)] if result.change else None,
        el("p", f"{result.certainty}; ", el("code", result.id)),
        class_=f"finding {name}",
    )
