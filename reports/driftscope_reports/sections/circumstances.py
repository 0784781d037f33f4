"""Acceptance by circumstance: context length, time, execution, structured output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from driftscope.analysis.groups import Group
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import number
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope_reports.chart import Axis, Chart, Kind, Series
from driftscope_reports.looks import PATTERNS, colour
from driftscope_reports.section import Picture

_KINDS = (
    ("context", "Context length", "tokens of context, from", "how long the context was"),
    ("time", "Over time", "part of the run", "the quarter of the run that the request began in"),
    ("execution", "Execution", "how the drafter ran", "how the drafter was executed"),
    ("structured", "Structured output", "requests", "whether a grammar rejected drafts"),
)


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """One per circumstance in which some run has more than one group."""
    return [p for kind in _KINDS if (p := _picture(runs, *kind))]


def _picture(
    runs: Sequence[RunSummary], field: str, words: str, x_title: str, by: str
) -> Picture | None:
    found = [(i, run.label, getattr(run.groups, field)) for i, run in enumerate(runs)]
    found = [(i, label, groups) for i, label, groups in found if len(groups) > 1]
    if not found:
        return None
    return Picture(
        id=f"where-{field}",
        title=_title(words, found),
        how=f"Tokens per round by {by}, with 95% intervals. Bars of one run whose intervals are "
        "apart differ by more than chance.",
        chart=Chart(
            series=tuple(_series(*each) for each in found), x_title=x_title,
            y_title="tokens per round", axis=Axis.CATEGORY, height=250,
        ),
        definitions=(MEAN_LENGTH,),
    )  # fmt: skip


def _series(index: int, label: str, groups: Sequence[Group]) -> Series:
    spreads = [group.mean_length_interval for group in groups]
    return Series(
        name=label, kind=Kind.BAR, x=tuple(_short(group.name) for group in groups),
        y=tuple(group.mean_length for group in groups), colour=colour(index),
        pattern=PATTERNS[index % len(PATTERNS)],
        low=tuple(s.low if s else None for s in spreads),
        high=tuple(s.high if s else None for s in spreads),
    )  # fmt: skip


def _short(name: str) -> str:
    """A range of lengths by its beginning: "16,384 to 32,767 tokens" is "16k"."""
    found = re.match(r"([\d,]+) to [\d,]+", name)
    if not found:
        return name
    start = int(found[1].replace(",", ""))
    return f"{start // 1024}k" if start >= 1024 else str(start)


def _title(words: str, found: Sequence[tuple[int, str, Sequence[Group]]]) -> str:
    spans = []
    for _, label, groups in found:
        ends = sorted((group.mean_length, group.name) for group in groups)
        spans.append((ends[-1][0] - ends[0][0], label, ends[0], ends[-1]))
    _, label, low, high = max(spans)
    return (
        f"{words}: {label} yields {number(low[0])} tokens per round at {low[1]} and "
        f"{number(high[0])} at {high[1]}"
    )
