"""The tables of a report: their heads and cells, the same for the page, a terminal and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from driftscope.analysis.advice import ends
from driftscope.analysis.advice import signed as signed_gain
from driftscope.analysis.compare import LENGTH, TIMES, WHOLE, Comparison, Difference, between_ends
from driftscope.analysis.compare import signed as signed_difference
from driftscope.analysis.figures.change_points import Changes
from driftscope.analysis.number_words import NOTHING, milliseconds, number, percent, times
from driftscope.analysis.replays import NO_INTERVAL, NOT_RECORDED, Cell
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import PairedRatio
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.attention import GENERATED, PROMPT, SELF, SINK

Columns = Sequence[tuple[str, Callable[[Any], str]]]
"""Head of each column of a table, and the cell that it makes of a row's record."""


def head_of(columns: Columns) -> list[str]:
    """Return the heads of a table."""
    return [head for head, _ in columns]


def rows_of(columns: Columns, records: Iterable[Any]) -> list[list[str]]:
    """Return a table's rows, one for each record."""
    return [[cell(record) for _, cell in columns] for record in records]


def _counted(value: int | None) -> str:
    return NOT_RECORDED if value is None else f"{value:,}"


# ---- runs side by side

LENGTH_NAME, ROUNDS, TIME = "acceptance length", "rounds / requests", "time per output token"
LEFT_OUT = "- rounds left out, of requests seen in part"
_FIGURES: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    (ROUNDS, lambda run: f"{run.rounds:,} / {run.requests:,}"),
    (
        LENGTH_NAME,
        lambda run: _with_ends(run.acceptance.mean_length, run.acceptance.mean_length_interval),
    ),
    ("acceptance length over time", lambda run: over_time(run.changes)),
    (
        "accepted to depth 1, to depth K",
        lambda run: (
            f"{percent(run.acceptance.marginal[0])}, {percent(run.acceptance.marginal[-1])}"
        ),
    ),
    ("growth of the fed state", lambda run: times(run.hidden.growth)),
    ("attention on the chain, depth K", lambda run: _last(run.attention.self_mass)),
    ("top-1 probability, depth 1 to K", lambda run: _first_to_last(run.confidence.top1)),
    (TIME, lambda run: milliseconds(run.latency.tpot_s)),
    ("time to first token", lambda run: milliseconds(run.latency.ttft_s)),
    (
        "steps rejected, without a draft",
        lambda run: (
            f"{percent(run.fallback.rejected_share)}, {percent(run.fallback.undrafted_share)}"
        ),
    ),
    ("probe cost, all in", lambda run: percent(run.recording.overhead_fraction)),
)


def figure_rows(runs: Sequence[RunSummary]) -> list[list[str]]:
    """Return the table's rows: a name, then a figure of each run."""
    rows = []
    for name, show in _FIGURES:
        rows.append([name, *(show(run) for run in runs)])
        if name == ROUNDS and any(run.cohort for run in runs):
            rows.append([LEFT_OUT, *(_left_out(run) for run in runs)])
        if name == LENGTH_NAME:
            ks = sorted({at_k.k for run in runs for at_k in run.acceptance.by_k})
            rows += [
                [f"- of rounds with K = {k}", *(_length_at(run, k) for run in runs)] for k in ks
            ]
    return rows


def _left_out(run: RunSummary) -> str:
    """Return how many rounds the figures leave out, or that nothing is told without them."""
    if run.cohort is None:
        return "0"
    return f"{run.cohort.left_out:,}" if run.cohort.enough else "cannot tell"


def _length_at(run: RunSummary, k: int) -> str:
    """Return the acceptance length of the rounds that drafted `k` tokens, and their share."""
    acceptance = next((at_k for at_k in run.acceptance.by_k if at_k.k == k), None)
    if acceptance is None:
        return NOTHING
    return f"{number(acceptance.mean_length)} ({percent(acceptance.rounds / run.rounds)} of rounds)"


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


def _with_ends(value: float | None, spread: Interval | None) -> str:
    return number(value) + (f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else "")


def _first_to_last(values: tuple[float, ...] | None) -> str:
    return NOTHING if values is None else f"{number(values[0])} → {number(values[-1])}"


def _last(values: tuple[float, ...] | None) -> str:
    return percent(None if values is None else values[-1])


# ---- parts of a run, replays

SEGMENT_COLUMNS: Columns = (
    ("requests", lambda segment: f"{segment.requests:,}"),
    ("rounds", lambda segment: f"{segment.rounds:,}"),
    (LENGTH_NAME, lambda segment: _with_ends(segment.mean_length, segment.mean_length_interval)),
    ("to depth K", lambda segment: percent(segment.reach)),
)
INSIDE_SEGMENTS: Columns = (
    ("growth of hidden state", lambda segment: times(segment.growth)),
    ("attention on the chain, depth K", lambda segment: percent(segment.self_mass)),
    ("time per token", lambda segment: milliseconds(segment.tpot_s)),
    ("time to first token", lambda segment: milliseconds(segment.ttft_s)),
)
"""Columns that a terminal has no room for."""
CELL_COLUMNS: Columns = (
    ("condition", lambda cell: cell.condition),
    ("load", lambda cell: cell.load),
    ("tokens/round", lambda cell: _cell_length(cell)),
    ("to baseline", lambda cell: _ratio(cell.length_ratio)),
    ("per token", lambda cell: milliseconds(cell.tpot_s)),
    ("tokens/s", lambda cell: number(cell.throughput, 1)),
    ("first token", lambda cell: milliseconds(cell.ttft_s)),
)
"""One condition of a replay at one load."""
SENDER_COLUMNS: Columns = (
    ("answered", lambda cell: _answered(cell)),
    ("time to baseline", lambda cell: _ratio(cell.tpot_ratio)),
    ("tokens/s per user", lambda cell: number(cell.per_user, 1)),
)
"""Columns that a terminal has no room for."""
SUM_COLUMNS: Columns = (
    ("condition", lambda cell: cell.condition),
    ("period", lambda cell: cell.totals.period),
    ("K", lambda cell: _counted(cell.totals.k)),
    ("rounds", lambda cell: _counted(cell.totals.rounds)),
    ("verified", lambda cell: _counted(cell.totals.verified)),
    ("accepted", lambda cell: _counted(cell.totals.accepted)),
    ("by depth", lambda cell: " ".join(map(number, cell.totals.marginal or ())) or NOT_RECORDED),
)
"""Sums of another tool's file."""
VERSUS_COLUMNS: Columns = (
    ("replay", lambda pair: pair.other),
    ("against", lambda pair: pair.first),
    ("condition", lambda pair: pair.condition),
    ("load", lambda pair: pair.load),
    ("tokens/round", lambda pair: _ratio(pair.length_ratio)),
    ("per token", lambda pair: _ratio(pair.tpot_ratio)),
    ("same text", lambda pair: percent(_share(*pair.same_text))),
)
"""Two replays of the same prompts."""


def _answered(cell: Cell) -> str:
    if cell.answered is not None and cell.requests is not None:
        return f"{cell.answered:,} of {cell.requests:,}"
    return NOT_RECORDED if cell.requests is None else f"{cell.requests:,} requests"


def _share(part: int, of: int) -> float | None:
    return part / of if of else None


def _ratio(value: PairedRatio | None) -> str:
    """Return a ratio with its interval, such as "0.91 [0.85, 0.97]"."""
    return NOTHING if value is None else _with_ends(value.value, value.interval)


def _cell_length(cell: Cell) -> str:
    """Return the acceptance length with its interval; of sums, that they have none."""
    spread = cell.mean_length_interval
    if spread is None and cell.totals is not None and cell.mean_length is not None:
        return f"{number(cell.mean_length)} ({NO_INTERVAL})"
    return _with_ends(cell.mean_length, spread)


POLICY_COLUMNS: Columns = (
    ("policy", lambda policy: policy.name),
    ("verified per round", lambda policy: number(policy.verified, 1)),
    ("tokens per round", lambda policy: number(policy.mean_length)),
    ("tokens/s", lambda policy: number(policy.tokens_per_s.value, 0)),
    ("against as served", lambda policy: f"{signed_gain(policy.gain.value)}{ends(policy.gain)}"),
)
"""What a policy of drafting would have served."""


# ---- two runs compared

_MASSES = {SINK.name: "sink", PROMPT.name: "prompt", GENERATED.name: "output", SELF.name: "chain"}
_WHOLE_NAMES = {LENGTH: LENGTH_NAME, **TIMES}
"""Names of figures over all requests that have no depth."""
UNSURE = "chance?"


def comparison_rows(comparison: Comparison) -> list[Difference]:
    """Return every compared figure, those that differ first."""
    figures = (*comparison.differences, *comparison.masses.differences)
    return sorted(figures, key=lambda row: (not row.differs, not is_unsure(row)))


def comparison_cells(row: Difference, *, longest: int | None = None) -> tuple[str, ...]:
    """Return the cells of a compared figure: name, figure of each run, difference with its
    interval, and whether it differs. Labels are clipped to `longest` letters."""
    named = row.segment
    if longest is not None and len(named) > longest:
        named = f"{named[: longest - 1]}…"
    if row.segment != WHOLE:
        name = f"{named}: {f'to depth {row.depth}' if row.depth else 'length'}"
    elif row.metric in _MASSES:
        name = f"mass on {_MASSES[row.metric]}, depth {row.depth}"
    else:
        name = _WHOLE_NAMES.get(row.metric, f"accepted to depth {row.depth}")
    mark = "differs" if row.differs else UNSURE if is_unsure(row) else ""
    if row.p_adjusted is None:
        mark = "untested" if row.interval is None else ""
    timed = row.metric in TIMES
    return (
        name,
        *(milliseconds(v) if timed else number(v, 3) for v in (row.first, row.second)),
        f"{signed_difference(row, row.difference)} ({between_ends(row).replace(' ms', '')})",
        mark,
    )


def is_unsure(row: Difference) -> bool:
    """Return whether the interval excludes 0, but not once the other figures are considered."""
    return row.interval is not None and row.interval.excludes_zero() and not row.differs


def stands_out(row: Difference) -> bool:
    """Return whether a figure differs, may do so, or is of all requests as a whole."""
    whole = row.segment == WHOLE and row.metric in _WHOLE_NAMES
    return row.differs or is_unsure(row) or whole
