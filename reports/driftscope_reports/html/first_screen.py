"""First screen of the report: badge, headline, three figures, one picture, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from driftscope.analysis.number_words import number
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Topic, capital
from driftscope.findings.first_screen import Action, FirstScreen, KeyFigure, State
from driftscope.findings.rules_data import QualityWarning
from driftscope.pipeline import Analysis
from driftscope_reports.html.lead_picture import lead_picture
from driftscope_reports.html.terms import term
from driftscope_reports.markup import el
from driftscope_reports.model import by_run, picture_html
from driftscope_reports.page import part

STATES = {
    State.ACT: ("▲ Act on this", "high"),
    State.LOOK: ("◆ Worth a look", "medium"),
    State.TOO_LITTLE: ("? Too little data", "info"),
    State.NOTHING_SEEN: ("✓ Nothing found in what could be looked at", "info"),
    State.HEALTHY: ("✓ Healthy", "good"),
}
"""Words and CSS class of each state, above the headline."""
_BRACKET = re.compile(r" \(([^()]*\d[^()]*)\)(?=, but | of at most |\.$)")
"""Figures of a headline, in brackets."""
_INTERVAL = re.compile(r"(?:(?P<value>[^,;]+), )?(?P<ends>\S+ to .*)")


def opening(
    analysis: Analysis, warnings: Sequence[QualityWarning], losses: Sequence[QualityWarning]
) -> Markup:
    """Return the first screen.

    `warnings` are those that no later section shows; `losses`, that is missing records, come before
    every figure.
    """
    screen, picture = analysis.screen, lead_picture(analysis)
    headline = screen.headline if screen else analysis.verdict[0]
    words, detail = split(headline)
    return el(
        "section",
        part("warning_box", losses, "Not everything was recorded:"),
        el("div", _badge(screen) if screen else None, _slices(analysis.runs), class_="badges"),
        el("h1", words),
        el("p", detail, class_="detail") if detail else None,
        el("p", el("b", "But: "), screen.cause, class_="cause")
        if screen and screen.cause
        else None,
        _figures(screen.figures) if screen else None,
        el(
            "div",
            picture_html(picture) if picture else None,
            _actions(screen.actions) if screen else None,
            class_="screen",
        ),
        _ground(analysis),
        part("warning_box", warnings),
        class_="verdict",
        id="verdict",
    )


def split(headline: str) -> tuple[str, str]:
    """Return a headline without its figures in brackets, and these; "" if it has none."""
    found = _BRACKET.search(headline)
    if found is None:
        return headline, ""
    interval = _INTERVAL.fullmatch(found[1])
    if interval is None:
        detail = capital(found[1])
    elif interval["value"]:
        detail = f"{interval['value']}, 95% interval {interval['ends']}"
    else:
        detail = f"95% interval {interval['ends']}"
    return _BRACKET.sub("", headline, count=1), f"{detail}."


def _badge(screen: FirstScreen) -> Markup:
    words, name = STATES[screen.state]
    return el("p", words, class_=f"state {name}")


def _slices(runs: Sequence[RunSummary]) -> list[Markup]:
    """Return a mark for each run that is only a part of what was recorded."""
    several = len(runs) > 1
    return [
        el(
            "p",
            "✂ Part of the run: " if not several else f"✂ Part of {run.label}: ",
            run.slice.words(run.requests),
            class_="chip",
        )
        for run in runs
        if run.slice is not None
    ]


def _figures(figures: Sequence[KeyFigure]) -> Markup:
    cards = [
        el(
            "div",
            el("dt", term(each.unit, each.meaning, id=f"figure-{n}")),
            el("dd", el("strong", each.value), el("span", each.reference)),
        )
        for n, each in enumerate(figures)
    ]
    return el("dl", cards, class_="figures")


def _actions(actions: Sequence[Action]) -> Markup:
    """Return what to do, ranked, each with the option to paste."""
    return el(
        "section",
        el("h2", "What to do", id="do-heading"),
        el("ol", [el("li", _action(each)) for each in actions], class_="actions"),
        class_="do",
        id="do",
        aria_labelledby="do-heading",
    )


def _action(action: Action) -> list[Markup | None]:
    worth = f", worth about {action.worth_tps:,.0f} tokens per second" if action.worth_tps else ""
    return [
        el("p", action.sentence),
        part("to_copy", action.option) if action.option else None,
        el("p", el("b", "Why: "), action.why, worth, ".", class_="why") if action.why else None,
    ]


def _ground(analysis: Analysis) -> Markup | None:
    """Return how much data the page rests on; of replays, what the others answered."""
    screen = analysis.screen
    if screen is None or not screen.claims:
        rest = analysis.verdict[1:]
        return el("p", " ".join(rest), class_="ground") if rest else None
    texts = dict(screen.lines).get(Topic.DATA, ())
    return el("p", el("b", "Data: "), " ".join(texts), class_="ground") if texts else None


def plainly(runs: Sequence[RunSummary]) -> str:
    """Return what was served and the result, for a reader who knows none of the terms."""
    ks = sorted({k for run in runs for k in run.ks})
    ahead = f"{ks[0]}" if len(ks) == 1 else f"up to {ks[-1]}"
    kept = by_run(runs, [number(run.acceptance.mean_length - 1.0, 1) for run in runs])
    tokens = "token" if ks == [1] else "tokens"
    return (
        f"To answer faster, a small model drafts {ahead} {tokens} ahead and the large model "
        f"verifies them in one step. On average {kept} of these draft tokens are accepted."
    )
