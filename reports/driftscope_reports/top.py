"""The first screen: verdict, one card per run, findings."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, milliseconds, number, percent, times
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.definition import Definition
from driftscope.metrics.hidden import GROWTH
from driftscope.metrics.latency import TPOT
from driftscope_reports.looks import GLYPHS
from driftscope_reports.markup import Markup, el

_SEVERITY = {
    Severity.HIGH: ("▲", "act"),
    Severity.MEDIUM: ("◆", "look"),
    Severity.INFO: ("ℹ", "know"),
    Severity.GOOD: ("✓", "fine"),
}
"""Sign and word of each severity: never colour alone."""


def opening(analysis: Analysis, warnings: Markup | None) -> Markup:
    """Section 1: the sentence, one figure per run, what was found and what to do.

    `warnings` are those that no later section shows.
    """
    first, *rest = analysis.verdict
    return el(
        "section",
        el("h1", first),
        el("p", " ".join(rest), class_="lead") if rest else None,
        el("div", [_card(i, run) for i, run in enumerate(analysis.runs)], class_="cards"),
        warnings,
        findings(analysis),
        class_="verdict",
        id="verdict",
    )


def findings(analysis: Analysis) -> Markup:
    """Findings of one kind stand together, worst first."""
    titles = dict.fromkeys((f.id, f.title) for f in analysis.findings)
    groups = [[f for f in analysis.findings if (f.id, f.title) == key] for key in titles]
    return el(
        "div",
        el("h2", "What was found, and what to do"),
        [_finding(group) for group in groups] or el("p", "Nothing stands out."),
        id="findings",
    )


def _card(index: int, run: RunSummary) -> Markup:
    spread = run.acceptance.mean_length_interval
    interval = f"95% interval {spread.low:.2f} to {spread.high:.2f}" if spread else None
    return el(
        "article",
        el("h2", _glyph(index), " ", run.label),
        el(
            "p",
            el("strong", number(run.acceptance.mean_length), class_="figure"),
            el("span", " ", el("abbr", "tokens per round", title=MEAN_LENGTH.meaning)),
            el("small", interval) if interval else None,
        ),
        el(
            "dl",
            _entry(GROWTH, f"hidden state, depth 1 to {run.k}", times(run.hidden.growth)),
            _entry(MARGINAL, f"accepted to depth {run.k}", percent(run.acceptance.marginal[-1])),
            _entry(TPOT, "time per output token", milliseconds(run.latency.tpot_s)),
        ),
        class_=f"card run-{index % len(GLYPHS)}",
    )


def _glyph(index: int) -> Markup:
    return el("span", GLYPHS[index % len(GLYPHS)], class_="glyph", aria_hidden="true")


def _entry(definition: Definition, words: str, figure: str) -> list[Markup]:
    return [el("dt", el("abbr", words, title=definition.meaning)), el("dd", figure)]


def _finding(group: list[Finding]) -> Markup:
    severity = group[0].severity
    sign, word = _SEVERITY[severity]
    many = len(group) > 1 or len(group[0].runs) == 1
    return el(
        "article",
        el("h3", el("span", f"{sign} {word}", class_="severity"), " ", group[0].title),
        el(
            "ul", [el("li", _who(f) if many else None, f"{f.statement}.", _trust(f)) for f in group]
        ),
        None if severity is Severity.GOOD else _advice(group),
        [el("code", f.option, class_="option", tabindex="0") for f in group if f.option],
        class_=f"finding {severity.value}",
    )


def _statement(finding: Finding, many: bool) -> Markup:
    who = _who(finding) if many else None
    return el("li", who, f"{finding.statement}.", _trust(finding))


def _trust(finding: Finding) -> Markup:
    """How sure it is and what it costs, in small."""
    cost = ""
    if finding.cost_tps is not None:
        cost = f"; it costs about {finding.cost_tps:,.0f} tokens per second"
    because = f", {finding.because}" if finding.because else ""
    words = f" Confidence: {finding.confidence.value}{because}{cost}."
    return el("small", words, class_="trust")


def _advice(group: list[Finding]) -> list[Markup]:
    """Once where it is the same for all runs, else with their names."""
    if len({f.advice for f in group}) == 1:
        return [el("p", el("b", "What to do: "), group[0].advice)]
    return [el("p", el("b", f"What to do ({listed(f.runs)}): "), f.advice) for f in group]


def _who(finding: Finding) -> Markup:
    return el("b", f"{', '.join(finding.runs)}: ")
