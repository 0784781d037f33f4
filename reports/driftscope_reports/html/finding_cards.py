"""Cards of the findings, each with its advice."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from driftscope.analysis.number_words import listed
from driftscope.findings.finding import Finding, Severity, Suspect, Trust
from driftscope.findings.first_screen import URGENT, subject_of
from driftscope.pipeline import Analysis
from driftscope_reports.markup import Child, el
from driftscope_reports.page import part

_SIGNS = {Severity.HIGH: "▲", Severity.MEDIUM: "◆", Severity.INFO: "ℹ", Severity.GOOD: "✓"}
_SEVERITY = {severity: f"{sign} {severity}" for severity, sign in _SIGNS.items()}
"""Sign and word of each severity, so that it is never shown by colour alone."""


def findings(analysis: Analysis) -> Markup:
    """Return the folded section of findings; those of one kind are adjacent, in the order of the
    analysis."""
    titles = dict.fromkeys((f.id, f.title) for f in analysis.findings)
    groups = [[f for f in analysis.findings if (f.id, f.title) == key] for key in titles]
    several = len(analysis.runs) + len(analysis.senders) > 1
    return part(
        "fold",
        "findings",
        "Findings and what to do",
        _in_short(analysis.findings),
        el("div", [_finding(group, several) for group in groups], class_="findings")
        if groups
        else "",
    )


def _in_short(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity, and the most urgent one."""
    if not findings:
        return "No findings."
    each = [
        f"{n} {_SEVERITY[severity]}"
        for severity in Severity
        if (n := sum(finding.severity is severity for finding in findings))
    ]
    subject = subject_of(findings)
    urgent = f" Most urgent: {subject.title}." if subject else ""
    return f"{', '.join(each)}.{urgent}"


def _finding(group: Sequence[Finding], several: bool) -> Markup:
    severity = group[0].severity
    asks = severity in URGENT
    return el(
        "article",
        el("h3", el("span", _SEVERITY[severity], class_="severity"), " ", group[0].title),
        [el("p", _who(f) if several else None, _stated(f), _cost(f)) for f in group],
        _advice(group) if asks else None,
        [part("to_copy", f.option) for f in group if f.option],
        [_causes(f, several) for f in group if f.causes],
        el(
            "div",
            None if asks or severity is Severity.GOOD else _opened("What to do", _advice(group)),
            _opened(_sure(group), [_trust(f, several) for f in group]),
            class_="more",
        ),
        class_=f"finding {severity.value}",
    )


def _opened(name: str, content: Child) -> Markup:
    """Return text that opens over the finding."""
    return el(
        "details",
        el("summary", name),
        el("div", content, class_="panel", tabindex="0"),
        class_="pop",
    )


def _stated(finding: Finding) -> str:
    return f"{finding.statement[:1].upper()}{finding.statement[1:]}."


def _cost(finding: Finding) -> Markup | None:
    if finding.cost_tps is None:
        return None
    return el("b", f" Worth about {finding.cost_tps:,.0f} tokens per second.", class_="cost")


def _sure(group: Sequence[Finding]) -> str:
    """Return the lowest confidence of the group; the details name the run."""
    least = max(group, key=lambda finding: list(Trust).index(finding.confidence))
    return f"Confidence: {least.confidence.value}. Why?"


def _trust(finding: Finding, several: bool) -> Markup:
    """Return the reason for the confidence of a finding, and its assumptions."""
    because = finding.because or f"{finding.confidence.value} confidence"
    assumed = [el("li", f"{each[:1].upper()}{each[1:]}.") for each in finding.assumed]
    return el(
        "div",
        el("p", _who(finding) if several else None, f"{because[:1].upper()}{because[1:]}."),
        [el("p", "It rests on assumptions that this run cannot confirm:"), el("ul", assumed)]
        if assumed
        else None,
        class_="trust",
    )


def _advice(group: Sequence[Finding]) -> list[Markup]:
    """Return one advice if it is identical for all runs, else one per finding with its runs."""
    if len({f.advice for f in group}) == 1:
        return [el("p", el("b", "What to do: "), group[0].advice)]
    return [el("p", el("b", f"What to do ({listed(f.runs)}): "), f.advice) for f in group]


def _causes(finding: Finding, several: bool) -> Markup:
    """List the causes to check, in order, and those that need no check."""
    return el(
        "div",
        el("p", _who(finding) if several else None, "What to check, most likely first:"),
        el("ol", [el("li", _cause(each)) for each in finding.causes]),
        [
            el("p", "Checked and ruled out:"),
            el("ul", [el("li", f"{each.cause}: {each.seen}.") for each in finding.ruled_out]),
        ]
        if finding.ruled_out
        else None,
        class_="causes",
    )


def _cause(each: Suspect) -> list[Markup | str]:
    name = f"{each.cause[:1].upper()}{each.cause[1:]}"
    content: list[Markup | str] = [el("b", name) if each.supported else name, ". "]
    if each.seen:
        seen = "Supported by this run: " if each.supported else "Seen: "
        content.append(f"{seen}{each.seen}. ")
    return [*content, f"Check: {each.check}."]


def _who(finding: Finding) -> Markup:
    return el("b", f"{', '.join(finding.runs)}: ")
