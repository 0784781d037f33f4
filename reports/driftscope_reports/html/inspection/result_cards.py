"""Cards of what the checks and the trial of a checkpoint found, errors first."""

from __future__ import annotations

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


def cards(inspection: Inspection) -> Markup:
    """Return the section of results."""
    return el(
        "section",
        el("h2", "What was found, and what to change", id="findings-heading"),
        el("div", [_card(result) for result in inspection.results], class_="findings")
        if inspection.results
        else el("p", f"Nothing, in {inspection.checks} checks."),
        id="findings",
        aria_labelledby="findings-heading",
    )


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
