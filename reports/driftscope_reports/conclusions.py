"""Conclusions of a report: first screen with its picture, answers, cards of findings, terms.

All of them render `Analysis.findings` and `Analysis.answers`; no sentence appears twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from driftscope.analysis.number_words import listed, number
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.finding import Answer, Finding, Severity, Topic, Trust, capital
from driftscope.findings.first_screen import FirstScreen, State
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.pipeline import Analysis
from driftscope_reports.charts import Axis, Mark, bars, figure
from driftscope_reports.model import Picture, by_run, picture_html
from driftscope_reports.page import macro, part
from driftscope_reports.sections_inside import marginal_acceptance

_TEMPLATE = "conclusions.jinja"
STATES = {
    State.ACT: ("▲ Act on this", "high"),
    State.LOOK: ("◆ Worth a look", "medium"),
    State.TOO_LITTLE: ("? Too little data", "info"),
    State.NOTHING_SEEN: ("✓ Nothing found in what could be looked at", "info"),
    State.HEALTHY: ("✓ Healthy", "good"),
    State.PLAIN: ("No speculation", "info"),
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
    Topic.WHERE: "Accepted evenly",
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
    several = len(analysis.runs) > 1
    return macro(
        _TEMPLATE,
        "opening",
        screen=screen,
        state=STATES[screen.state],
        slices=[
            f"✂ Part of {run.label if several else 'the run'}: {run.slice.words(run.requests)}"
            for run in analysis.runs
            if run.slice is not None
        ],
        headline=words,
        detail=detail,
        figures=[
            (part("term", shown.unit, shown.meaning, f"figure-{place}"), shown)
            for place, shown in enumerate(screen.figures)
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


def answers(screen: FirstScreen) -> Markup | None:
    """Return the answers in one line, which opens to their sentences, one line per topic; None
    without any."""
    rows = []
    for topic, texts in screen.lines:
        term = _EXPLAINED.get(topic)
        name = part("term", topic.words, _TERMS[term], topic.value) if term else topic.words
        if topic is not Topic.GROUND:
            rows.append((name, texts))
    known = [(*_MARKS[mark], topic, mark) for topic, mark in screen.marks if topic in _QUESTIONS]
    marks = [(sign, tone, f"{_QUESTIONS[topic]}: {mark}") for sign, tone, topic, mark in known]
    if not rows:
        return None
    return macro(_TEMPLATE, "answers", marks, rows)


def findings(analysis: Analysis) -> Markup:
    """Return the folded section of findings; those of one kind are adjacent, in the order of the
    analysis."""
    titles = dict.fromkeys((finding.id, finding.title) for finding in analysis.findings)
    same = [[f for f in analysis.findings if (f.id, f.title) == title] for title in titles]
    several = len(analysis.runs) + len(analysis.senders) > 1
    groups = [
        {
            "findings": group,
            "severity": _SEVERITY[group[0].severity or Severity.INFO],
            "advised": _advised(group, analysis.screen),
            "confidence": max((f.confidence for f in group), key=[*Trust].index),
        }
        for group in same
    ]
    content = macro(_TEMPLATE, "cards", groups, analysis.screen, several) if groups else ""
    counts = [
        (sum(finding.severity is severity for finding in analysis.findings), severity)
        for severity in Severity
    ]
    shown = ", ".join(f"{n} {_SEVERITY[severity]}" for n, severity in counts if n)
    return part(
        "fold",
        "findings",
        "Findings and what to do",
        (f"{shown}." if shown else "No findings."),
        content,
    )


def _advised(group: Sequence[Finding], screen: FirstScreen) -> list[tuple[str, str]]:
    """Return head and words of the advice that the first screen does not give: once if it is
    identical for all runs."""
    left = [
        (
            finding,
            finding.advice[len(finding.short_advice) :]
            if finding in screen.actions
            else finding.advice,
        )
        for finding in group
    ]
    known = [(finding, words.strip()) for finding, words in left if words.strip()]
    if len({words for _, words in known}) == 1:
        return [("What to do:", known[0][1])]
    return [(f"What to do ({listed(finding.runs)}):", words) for finding, words in known]


# ---- the one picture of the first screen

_MOST_CONDITIONS = 12


def lead_picture(analysis: Analysis) -> Picture | None:
    """Return the picture; None for replays that answered nothing."""
    if analysis.runs:
        known = [
            (case.run.label, case.advice.overall.best_k)
            for case in analysis.cases
            if case.advice and case.advice.worth_it and not case.advice.useless
        ]
        several = len(analysis.cases) > 1
        marks = tuple(
            Mark(x=k, text=f"K = {k} is faster{f' ({label})' if several else ''}")
            for label, k in known
            if k > 0
        )
        # The first and the last depth at which two runs differ by `driftscope compare`, with half a
        # depth around them, unless they differ at every depth.
        compared = [case.comparison for case in analysis.cases if case.comparison is not None]
        depths = compared[0].apart_at if len(analysis.cases) == 2 and compared else ()
        some = 0 < len(depths) < max(run.k for run in analysis.runs)
        shade = (min(depths) - 0.5, max(depths) + 0.5) if some else None
        picture = marginal_acceptance(analysis.runs, marks=marks, y_most=1.0, shade=shade)
        return picture if shade is None else replace(picture, how=f"{picture.how} {_SHADED}")
    drawn = [trace for i, replay in enumerate(analysis.senders) if (trace := _bars(i, replay)).y]
    if not drawn:
        return None
    ends = [
        " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(trace.y), max(trace.y))))
        for trace in drawn
    ]
    named = [f"{trace.name}: {words}" for trace, words in zip(drawn, ends, strict=True)]
    return Picture(
        id="replay-length",
        title=f"Tokens per round by condition: {'; '.join(named) if len(drawn) > 1 else ends[0]}",
        how="One bar per condition of the replay, with its 95% interval. Conditions differ in "
        "their prompts, so compare a bar with the same condition of another replay.",
        chart=figure(drawn, x_title="condition", y_title="tokens per round", axis=Axis.CATEGORY),
        definitions=(MEAN_LENGTH,),
    )


_SHADED = "Depths at which the two runs differ are shaded."


def _bars(index: int, replay: ReplaySummary) -> Any:
    cells = list({cell.condition: cell for cell in reversed(replay.cells)}.values())
    cells = [cell for cell in reversed(cells) if cell.mean_length is not None][:_MOST_CONDITIONS]
    return bars(
        replay.label,
        [cell.condition for cell in cells],
        [cell.mean_length for cell in cells],
        run=index,
        intervals=[cell.mean_length_interval for cell in cells],
    )


# ---- terms, for a reader who meets them for the first time

_TERMS = {
    "Drafter": "A small model that drafts the next few tokens. The large model, the target, "
    "verifies all of them in one step and accepts those it agrees with. That is speculative "
    "decoding.",
    "Depth": "The position of a draft token in its chain. Depth 1 is drafted from the target's own "
    "state; every further depth builds on the draft token before it.",
    "Round": "One chain of draft tokens and its verification. Every accepted draft token saves a "
    "step of the target; the target always adds one token of its own.",
    "K": "The number of draft tokens in a chain (num_speculative_tokens).",
    "Drift": "A change with depth that should not happen: the hidden state grows, or attention "
    "moves from the context to the drafter's own draft tokens. A high or low level alone is not "
    "drift.",
}


def terms(runs: Sequence[RunSummary]) -> Markup:
    """Return the folded glossary, below what was served in plain words."""
    served = None
    if runs:
        ks = sorted({k for run in runs for k in run.ks})
        ahead = f"{ks[0]}" if len(ks) == 1 else f"up to {ks[-1]}"
        kept = by_run(runs, [number(run.acceptance.mean_length - 1.0, 1) for run in runs])
        tokens = "token" if ks == [1] else "tokens"
        served = (
            f"To answer faster, a small model drafts {ahead} {tokens} ahead and the large model "
            f"verifies them in one step. On average {kept} of these draft tokens are accepted."
        )
    content = macro(_TEMPLATE, "glossary", served, _TERMS.items())
    return part(
        "fold", "terms", "New to this?", "The terms of this report in plain words.", content
    )
