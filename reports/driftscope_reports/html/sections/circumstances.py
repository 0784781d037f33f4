"""Section parts on acceptance by circumstance: small pictures of one figure, side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.analysis.circumstances import Group
from driftscope.analysis.number_words import NOTHING, count, number
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series
from driftscope_reports.drawing.palette import PATTERNS, colour
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Markup
from driftscope_reports.model import Picture

KINDS = (
    ("context", "Context length", "tokens of context, from", "how long the context was"),
    ("batch", "Batch size", "requests in the step", "how many requests were in the step"),
    ("temperature", "Temperature", "temperature", "the temperature of the request"),
    ("execution", "Execution", "how the drafter ran", "how the drafter was executed"),
    ("structured", "Tool calls, structured output", "requests", "whether a grammar lost drafts"),
    ("region", "Kind of text", "kind of text", "the kind of text that it drafts"),
    ("copied", "Copied text", "drafted text", "whether the text repeats an earlier passage"),
    ("finish", "How requests end", "finish reason", "how the request ended"),
)
ENOUGH = 5
"""Fewest requests with which a group is drawn: with fewer, the interval is uninformative."""
_RunGroups = tuple[int, str, Sequence[Group]]


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return one picture per circumstance in which some run has more than one group."""
    return [p for kind in KINDS if (p := _picture(runs, *kind))]


def _picture(
    runs: Sequence[RunSummary], field: str, words: str, x_title: str, by: str
) -> Picture | None:
    whole = [(i, run.label, getattr(run.groups, field)) for i, run in enumerate(runs)]
    drawn = [(i, label, [g for g in all_of if g.requests >= ENOUGH]) for i, label, all_of in whole]
    drawn = [(i, label, groups) for i, label, groups in drawn if groups]
    if max((len(groups) for _, _, groups in drawn), default=0) < 2:
        return None
    small = sum(g.requests < ENOUGH for _, _, groups in whole for g in groups)
    return Picture(
        id=f"where-{field}",
        title=_title(words, drawn, len(runs)),
        how=f"Tokens per round by {by}, with 95% intervals. If the intervals of a run do not "
        "overlap, the difference is more than chance explains.",
        chart=Chart(
            series=tuple(_series(*each) for each in drawn),
            x_title=x_title,
            y_title="tokens per round",
            axis=Axis.CATEGORY,
        ),
        definitions=(MEAN_LENGTH,),
        note=f"Not drawn: {count(small, 'group')} with fewer than {ENOUGH} requests."
        if small
        else None,
        numbers=_numbers(words, whole),
    )


def _numbers(words: str, run_groups: Sequence[_RunGroups]) -> Markup:
    rows = [
        [
            label,
            group.name,
            f"{group.requests:,}",
            f"{group.rounds:,}",
            number(group.mean_length),
            _ends(group),
        ]
        for _, label, groups in run_groups
        for group in groups
    ]
    head = ["run", words.lower(), "requests", "rounds", "tokens per round", "95% interval"]
    return table(head, rows, words=2, caption=f"Numbers by: {words}", sortable=True)


def _ends(group: Group) -> str:
    spread = group.mean_length_interval
    return f"{spread.low:.2f} to {spread.high:.2f}" if spread else NOTHING


def _series(index: int, label: str, groups: Sequence[Group]) -> Series:
    spreads = [group.mean_length_interval for group in groups]
    return Series(
        name=label,
        kind=Kind.BAR,
        x=tuple(short(group.name) for group in groups),
        y=tuple(group.mean_length for group in groups),
        colour=colour(index),
        pattern=PATTERNS[index % len(PATTERNS)],
        low=tuple(s.low if s else None for s in spreads),
        high=tuple(s.high if s else None for s in spreads),
    )


_SHORT = {"that lost drafts to a grammar": "lost drafts", "the others": "others"}


def short(name: str) -> str:
    """Return the group's name on an axis, ranges by their start: "16,384 to 32,767 tokens" is
    "16k"."""
    match = re.match(r"([\d,]+) to [\d,]+", name)
    if not match:
        return _SHORT.get(name, name)
    start = int(match[1].replace(",", ""))
    return f"{start // 1024}k" if start >= 1024 else str(start)


def _title(words: str, run_groups: Sequence[_RunGroups], runs: int) -> str:
    spans = []
    for _, label, groups in run_groups:
        ends = sorted((g.mean_length, _SHORT.get(g.name, g.name)) for g in groups)
        spans.append((ends[-1][0] - ends[0][0], label, ends[0], ends[-1]))
    _, label, low, high = max(spans)
    name = f"{label}, " if runs > 1 else ""
    begin = f"{words}: {name}from {number(low[0])} tokens per round ({low[1]})"
    return f"{begin} to {number(high[0])} ({high[1]})"
