"""The report's figures as a short table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from driftscope.analysis.figures.change_points import Changes
from driftscope.analysis.number_words import (
    NOTHING,
    ks_of,
    listed,
    milliseconds,
    number,
    percent,
    times,
)
from driftscope.analysis.replays import NO_INTERVAL, Cell
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import PairedRatio
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.text import shown
from driftscope.findings.finding import Severity
from driftscope.pipeline import Analysis
from driftscope_reports.terminal.first_screen_text import first_screen

_MARKS = {Severity.HIGH: "!!", Severity.MEDIUM: "!", Severity.INFO: "i", Severity.GOOD: "ok"}


def marked(severity: Severity | None) -> str:
    """Return sign and word of a severity, such as "!! high"."""
    return f"{_MARKS[severity]} {severity}" if severity else ""


_LENGTH = "acceptance length"
_ROUNDS = "rounds / requests"
LEFT_OUT = "- rounds left out, of requests seen in part"
FIGURES: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    (_ROUNDS, lambda run: f"{run.rounds:,} / {run.requests:,}"),
    (_LENGTH, lambda run: _length(run)),
    ("acceptance length over time", lambda run: over_time(run.changes)),
    ("accepted to depth 1", lambda run: percent(run.acceptance.marginal[0])),
    ("accepted to depth K", lambda run: percent(run.acceptance.marginal[-1])),
    ("fed state RMS, depth 1 to K", lambda run: _ends(run.hidden.fed_rms)),
    ("growth of the fed state", lambda run: times(run.hidden.growth)),
    ("attention on the chain, depth K", lambda run: _last(run.attention.self_mass)),
    ("top-1 probability, depth 1 to K", lambda run: _ends(run.confidence.top1)),
    ("time per output token", lambda run: milliseconds(run.latency.tpot_s)),
    ("time to first token", lambda run: milliseconds(run.latency.ttft_s)),
    ("rejected rounds, share of steps", lambda run: percent(run.fallback.rejected_share)),
    ("undrafted steps, share of steps", lambda run: percent(run.fallback.undrafted_share)),
    ("rows dropped", lambda run: f"{run.recording.dropped:,}"),
    ("probe cost, all in", lambda run: percent(run.recording.overhead_fraction)),
)

_SEGMENTS = 12
"""Most segments of each run that are listed."""


def render(analysis: Analysis) -> RenderableType:
    """Return losses, the first screen, the findings in brief, and one column per run."""
    return Group(
        *_losses(analysis),
        *first_screen(analysis),
        "",
        *_findings(analysis),
        *((_table(analysis), "") if analysis.runs else ()),
        *((_segments(analysis), "") if any(len(r.segments) > 1 for r in analysis.runs) else ()),
        *((_senders(analysis), "") if analysis.senders else ()),
        *((_versus(analysis), "") if analysis.versus else ()),
    )


def _findings(analysis: Analysis) -> list[RenderableType]:
    """Return the findings that the first screen does not tell, those with one title in a line."""
    others = analysis.other_findings
    lines: list[RenderableType] = []
    for title in dict.fromkeys(finding.title for finding in others):
        same = [finding for finding in others if finding.title == title]
        stated = "; ".join(finding.line if len(same) > 1 else finding.statement for finding in same)
        runs = "" if len(same) > 1 else f" ({listed(same[0].runs)})"
        lines.append(Text(shown(f"{marked(same[0].severity)}: {title}{runs}: {stated}.")))
    return [*lines, ""] if lines else []


def _losses(analysis: Analysis) -> list[RenderableType]:
    return [Text(shown(f"missing: {note.line}"), style="bold red") for note in analysis.losses]


def _table(analysis: Analysis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for run in analysis.runs:
        table.add_column(Text(shown(f"{run.label} ({ks_of(run.ks)})")), justify="right")
    for name, *cells in figure_rows(analysis.runs):
        table.add_row(name, *cells)
    return table


def figure_rows(runs: Sequence[RunSummary]) -> list[list[str]]:
    """Return the table's rows: a name, then a figure of each run."""
    rows = []
    for name, show in FIGURES:
        rows.append([name, *(show(run) for run in runs)])
        if name == _ROUNDS and any(run.cohort for run in runs):
            rows.append([LEFT_OUT, *(_left_out(run) for run in runs)])
        if name == _LENGTH:
            ks = sorted({each.k for run in runs for each in run.acceptance.by_k})
            rows += [[f"- of rounds with K = {k}", *(_at(run, k) for run in runs)] for k in ks]
    return rows


def _left_out(run: RunSummary) -> str:
    """Return how many rounds the figures leave out, or that nothing is told without them."""
    if run.cohort is None:
        return "0"
    return f"{run.cohort.left_out:,}" if run.cohort.enough else "cannot tell"


def _at(run: RunSummary, k: int) -> str:
    """Return the acceptance length of the rounds that drafted `k` tokens, and their share."""
    acceptance = next((each for each in run.acceptance.by_k if each.k == k), None)
    if acceptance is None:
        return NOTHING
    return f"{number(acceptance.mean_length)} ({percent(acceptance.rounds / run.rounds)} of rounds)"


def _segments(analysis: Analysis) -> Table:
    """Return the segments of each run, by the requested criterion, the first rows of each."""
    runs = [run for run in analysis.runs if len(run.segments) > 1]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*(["run"] if len(analysis.runs) > 1 else []), f"by {runs[0].segments[0].by}"):
        table.add_column(Text(shown(name)))
    for name in ("requests", "rounds", "acceptance length", "to depth K", "growth", "on the chain"):
        table.add_column(name, justify="right")
    for run in runs:
        who = [run.label] if len(analysis.runs) > 1 else []
        for each in run.segments[:_SEGMENTS]:
            cells = (
                each.label,
                f"{each.requests:,}",
                f"{each.rounds:,}",
                _with_ends(each.mean_length, each.mean_length_interval),
                percent(each.reach),
                times(each.growth),
                percent(each.self_mass),
            )
            table.add_row(*(Text(shown(cell)) for cell in (*who, *cells)))
        if (left := len(run.segments) - _SEGMENTS) > 0:
            table.add_row(*who, f"and {left:,} more in the report")
    return table


def _senders(analysis: Analysis) -> Table:
    """Return the replays, one row per condition and load."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("replay", "condition"):
        table.add_column(name)
    for name in ("load", "tokens/round", "to baseline", "per token", "tokens/s", "first token"):
        table.add_column(name, justify="right")
    for run in analysis.senders:
        for cell in run.cells:
            cells = (
                run.label,
                cell.condition,
                cell.load,
                replay_length(cell),
                replay_ratio(cell.length_ratio),
                milliseconds(cell.tpot_s),
                number(cell.throughput, 1),
                milliseconds(cell.ttft_s),
            )
            table.add_row(*(Text(shown(each)) for each in cells))
    return table


def _versus(analysis: Analysis) -> Table:
    """Return the first replay compared with the others, on the same prompts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("against " + analysis.versus[0].first, "condition"):
        table.add_column(shown(name))
    for name in ("load", "tokens/round", "per token", "same text"):
        table.add_column(name, justify="right")
    for pair in analysis.versus:
        same, of = pair.same_text
        cells = (
            pair.other,
            pair.condition,
            pair.load,
            replay_ratio(pair.length_ratio),
            replay_ratio(pair.tpot_ratio),
            percent(same / of if of else None),
        )
        table.add_row(*(Text(shown(each)) for each in cells))
    return table


def replay_ratio(value: PairedRatio | None) -> str:
    """Return a ratio with its interval, such as "0.91 [0.85, 0.97]"."""
    if value is None:
        return NOTHING
    spread = value.interval
    return number(value.value) + (f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else "")


def replay_length(cell: Cell) -> str:
    """Return the acceptance length with its interval; of sums, that they have none."""
    spread = cell.mean_length_interval
    if spread is None and cell.totals is not None and cell.mean_length is not None:
        return f"{number(cell.mean_length)} ({NO_INTERVAL})"
    return number(cell.mean_length) + (f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else "")


def over_time(changes: Changes | None) -> str:
    """Return the acceptance length of each level, with the moments between them."""
    if changes is None:
        return NOTHING
    if not changes.points:
        return "no change"
    moments = [datetime.fromtimestamp(p.time_s, UTC).strftime("%H:%M") for p in changes.points]
    levels = [number(level.mean_length) for level in changes.levels]
    steps = [f"{at} → {level}" for at, level in zip(moments, levels[1:], strict=True)]
    return " ".join([levels[0], *steps])


def _length(run: RunSummary) -> str:
    return _with_ends(run.acceptance.mean_length, run.acceptance.mean_length_interval)


def _with_ends(length: float | None, spread: Interval | None) -> str:
    words = number(length)
    return f"{words} [{spread.low:.2f}, {spread.high:.2f}]" if spread else words


def _ends(values: tuple[float, ...] | None) -> str:
    return "–" if values is None else f"{number(values[0])} → {number(values[-1])}"


def _last(values: tuple[float, ...] | None) -> str:
    return percent(None if values is None else values[-1])
