"""Every statement of the first screen, folded to the answers that they give."""

from __future__ import annotations

from markupsafe import Markup

from driftscope.findings.finding import TITLES, Answer, Topic
from driftscope.findings.first_screen import FirstScreen
from driftscope_reports.html.terms import meaning_of, term
from driftscope_reports.markup import el, join
from driftscope_reports.page import part

_MARKS = {
    Answer.YES: ("✓", "good"),
    Answer.NO: ("✗", "high"),
    Answer.CANNOT_TELL: ("?", "info"),
}
"""Sign and CSS class of each answer, the sign beside the word."""
_QUESTIONS = {
    Topic.SPEED: "Pays",
    Topic.ACCEPTANCE: "Acceptance holds",
    Topic.LOSSES: "Even over depth and traffic",
    Topic.INSIDE: "Attention stays",
}
_EXPLAINED = {Topic.ACCEPTANCE: "Round", Topic.INSIDE: "Drift", Topic.LOSSES: "Depth"}


def answers(screen: FirstScreen) -> Markup:
    """Return the answers in one line, which opens to the claims, one line per topic."""
    rows = [
        [el("dt", _topic(topic)), el("dd", [el("div", words) for words in texts])]
        for topic, texts in screen.lines
        if topic is not Topic.DATA
    ]
    return part(
        "fold", "answers", "Answers", join(_in_short(screen)), el("dl", rows, class_="claims")
    )


def _in_short(screen: FirstScreen) -> list[Markup]:
    shown = ((t, a) for t, a in screen.answers if t in _QUESTIONS and a in _MARKS)
    return [
        el(
            "span",
            el("span", _MARKS[answer][0], class_="severity", aria_hidden="true"),
            f"{_QUESTIONS[topic]}: {answer}",
            class_=f"answer {_MARKS[answer][1]}",
        )
        for topic, answer in shown
    ]


def _topic(topic: Topic) -> Markup | str:
    if topic not in _EXPLAINED:
        return TITLES[topic]
    return term(TITLES[topic], meaning_of(_EXPLAINED[topic]), id=topic.value)
