"""Where in the workload it happens."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.requests import UNLABELLED
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import milliseconds, number, percent, times
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.metrics.latency import TPOT, TTFT
from driftscope_reports.section import Section
from driftscope_reports.tables import table

_HEAD = (
    "run",
    "workload label",
    "requests",
    "rounds",
    "acceptance length",
    "accepted to depth K",
    "growth of hidden state",
    "attention on the chain, depth K",
    "time per token",
    "time to first token",
)


def section(analysis: Analysis) -> Section | None:
    """One row per run and workload label; None when no request has a label."""
    if not any(_labelled(run) for run in analysis.runs):
        return None
    rows = [
        [
            run.label,
            segment.label,
            f"{segment.requests:,}",
            f"{segment.rounds:,}",
            number(segment.mean_length),
            percent(segment.reach),
            times(segment.growth),
            percent(segment.self_mass),
            milliseconds(segment.tpot_s),
            milliseconds(segment.ttft_s),
        ]
        for run in analysis.runs
        for segment in run.segments
    ]
    return Section(
        id="segments",
        title=_title(analysis.runs),
        how="Each row is the part of a run whose requests carry one label. Compare rows of the "
        "same run: what differs between them comes from the workload (or, with few requests, from "
        "chance), not from the drafter.",
        numbers=table(_HEAD, rows, words=2),
        folded=False,
        definitions=(MEAN_LENGTH, GROWTH, SELF, TPOT, TTFT),
        affects="segments",
    )


def _labelled(run: RunSummary) -> bool:
    return any(segment.label != UNLABELLED for segment in run.segments)


def _title(runs: tuple[RunSummary, ...]) -> str:
    """Names the label with the lowest acceptance in the run where labels differ most."""
    spans = []
    for run in runs:
        known = [(s.mean_length, s.label) for s in run.segments if s.mean_length is not None]
        if len(known) > 1:
            low, high = min(known), max(known)
            spans.append((high[0] - low[0], run.label, low, high))
    if not spans:
        return "By workload"
    _, label, low, high = max(spans)
    return (
        f"By workload, {label} yields {number(low[0])} tokens per round on {low[1]} and "
        f"{number(high[0])} on {high[1]}"
    )
