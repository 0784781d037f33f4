"""What a report concludes: its first screen, the answers behind it, and the cards of its findings.

All of them render `Analysis.findings` and `Analysis.answers`; no sentence appears twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from driftscope.analysis.number_words import listed, number
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Answer, Finding, Severity, Topic, Trust, capital
from driftscope.findings.first_screen import FirstScreen, State
from driftscope.pipeline import Analysis
from driftscope_reports.html.lead_picture import lead_picture
from driftscope_reports.html.terms import meaning_of, term
from driftscope_reports.model import by_run, picture_html
from driftscope_reports.page import macro, part

_TEMPLATE = "conclusions.jinja"
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
_MARKS = {
    Answer.YES: ("✓", "good"),
    Answer.NO: ("✗", "high"),
    Answer.CANNOT_TELL: ("?", "info"),
}
"""Sign and CSS class of each answer, the sign beside the word."""
_QUESTIONS = {
    Topic.PAYS: "Pays",
    Topic.ACCEPTANCE: "Acceptance holds",
    Topic.WHERE: "Even over depth and traffic",
    Topic.INSIDE: "Attention stays",
}
_EXPLAINED = {Topic.ACCEPTANCE: "Round", Topic.INSIDE: "Drift", Topic.WHERE: "Depth"}
_SIGNS = {Severity.HIGH: "▲", Severity.MEDIUM: "◆", Severity.INFO: "ℹ", Severity.GOOD: "✓"}
_SEVERITY = {severity: f"{sign} {severity}" for severity, sign in _SIGNS.items()}
"""Sign and word of each severity, so that it is never shown by colour alone."""


def opening(analysis: Analysis, notes: Sequence[Finding]) -> Markup:
    """Return the first screen: badge, headline, three figures, one picture, and what to do.

    `notes` are those that no later section shows. Notes on missing rows come before every figure.
    """
    screen, picture = analysis.screen, lead_picture(analysis)
    words, detail = split(screen.headline)
    return macro(
        _TEMPLATE,
        "opening",
        screen=screen,
        state=STATES[screen.state],
        slices=_slices(analysis.runs),
        headline=words,
        detail=detail,
        figures=[
            (term(figure.unit, figure.meaning, id=f"figure-{place}"), figure)
            for place, figure in enumerate(screen.figures)
        ],
        picture=picture_html(picture) if picture else "",
        ground=" ".join(dict(screen.lines).get(Topic.GROUND, ())),
        losses=analysis.losses,
        notes=notes,
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


def _slices(runs: Sequence[RunSummary]) -> list[str]:
    """Return a mark for each run that is only a part of what was recorded."""
    several = len(runs) > 1
    return [
        f"✂ Part of {run.label if several else 'the run'}: {run.slice.words(run.requests)}"
        for run in runs
        if run.slice is not None
    ]


def answers(screen: FirstScreen) -> Markup | None:
    """Return the answers in one line, which opens to their sentences, one line per topic; None
    without any."""
    rows = [(_topic(topic), texts) for topic, texts in screen.lines if topic is not Topic.GROUND]
    known = [(*_MARKS[mark], topic, mark) for topic, mark in screen.marks if topic in _QUESTIONS]
    marks = [(sign, tone, f"{_QUESTIONS[topic]}: {mark}") for sign, tone, topic, mark in known]
    if not rows:
        return None
    in_short = macro(_TEMPLATE, "marks", marks)
    return part("fold", "answers", "Answers", in_short, macro(_TEMPLATE, "lines", rows))


def _topic(topic: Topic) -> Markup | str:
    if topic not in _EXPLAINED:
        return topic.words
    return term(topic.words, meaning_of(_EXPLAINED[topic]), id=topic.value)


def findings(analysis: Analysis) -> Markup:
    """Return the folded section of findings; those of one kind are adjacent, in the order of the
    analysis."""
    titles = dict.fromkeys((each.id, each.title) for each in analysis.findings)
    same = [[f for f in analysis.findings if (f.id, f.title) == title] for title in titles]
    several = len(analysis.runs) + len(analysis.senders) > 1
    groups = [
        {
            "findings": group,
            "severity": _SEVERITY[group[0].severity or Severity.INFO],
            "advised": _advised(group, analysis.screen),
            "confidence": max(group, key=_doubt).confidence,
        }
        for group in same
    ]
    content = macro(_TEMPLATE, "cards", groups, analysis.screen, several) if groups else ""
    return part(
        "fold", "findings", "Findings and what to do", _in_short(analysis.findings), content
    )


def _doubt(finding: Finding) -> int:
    return list(Trust).index(finding.confidence)


def _in_short(made: Sequence[Finding]) -> str:
    """Return how many findings there are of each severity."""
    counts = [(sum(each.severity is severity for each in made), severity) for severity in Severity]
    shown = ", ".join(f"{n} {_SEVERITY[severity]}" for n, severity in counts if n)
    return f"{shown}." if shown else "No findings."


def _advised(group: Sequence[Finding], screen: FirstScreen) -> list[tuple[str, str]]:
    """Return head and words of the advice that the first screen does not give: once if it is
    identical for all runs."""
    left = [
        (each, each.advice[len(each.short_advice) :] if each in screen.actions else each.advice)
        for each in group
    ]
    known = [(each, words.strip()) for each, words in left if words.strip()]
    if len({words for _, words in known}) == 1:
        return [("What to do:", known[0][1])]
    return [(f"What to do ({listed(each.runs)}):", words) for each, words in known]


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
