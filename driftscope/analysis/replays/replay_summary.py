"""Summaries of replays: what the sender of the requests measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.analysis.replays.file_totals import FileTotals
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.statistics.paired_ratios import Ratio
from driftscope.metrics.latency import per_user
from driftscope.trace.format.manifest import CLIENT, Manifest

OUTCOMES = ("json_ok", "tool_ok", "early_stop", "garbled", "looping")
"""Columns of ClientRow that tell whether an answer is as it should be."""
GOOD = ("json_ok", "tool_ok")
"""Columns in which True is good; in the others True is bad."""
NOT_RECORDED = "not recorded"
"""Words for a count, or a load, that another tool's file does not hold."""


Row = Mapping[str, Any]
"""One row of a client's table, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Figures of one condition at one load."""

    condition: str
    concurrency: int | None
    rate: float | None
    requests: int | None
    """Number of requests without warm-up; None if a file of sums does not count them."""
    answered: int | None
    """Number of these that were answered; None where only sums are known."""
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    throughput: float | None
    """Output tokens per second of the whole load, all conditions together."""
    rounds: int | None
    """Number of rounds; None if a file of sums does not count them."""
    mean_length: float | None
    mean_length_interval: Interval | None
    length_ratio: Ratio | None
    """Acceptance length over the baseline's, paired; None in the baseline itself."""
    tpot_ratio: Ratio | None
    outcomes: Mapping[str, tuple[int, int]]
    """Number of True values and of checked answers, by name in OUTCOMES; outcomes never checked are
    left out."""
    totals: FileTotals | None = None
    """Sums of another tool's file, which holds no rows of requests; None for a cell of rows."""

    @property
    def per_user(self) -> float | None:
        """Tokens per second that one user sees."""
        return per_user(self.tpot_s)

    @property
    def load(self) -> str:
        """Load in words."""
        return load_words({"rate": self.rate, "concurrency": self.concurrency})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """Summary of one replay."""

    label: str
    manifest: Manifest
    planned: int | None
    """Number of requests; None where only sums are known."""
    ended: Mapping[str, int]
    cells: tuple[Cell, ...]
    joined: int
    """Number of requests that a probe's run analysed with it has, too."""
    outside_s: float | None
    """Mean of the sender's time to first token minus the engine's, over joined requests: network,
    HTTP and the time before the engine."""
    gpu_used_bytes: int | None
    """Largest memory in use on all GPUs of the sender's machine together, by any process; None
    without a GPU."""
    gpu_power_w: float | None
    """Mean power of these GPUs together, in watts."""
    rows: tuple[Row, ...]
    """Rows that figures count: answered and not warm-up."""
    problems: tuple[str, ...]

    @property
    def speculates(self) -> bool:
        """Whether any request reports a round."""
        return any(cell.rounds or cell.mean_length is not None for cell in self.cells)

    @property
    def has_rows(self) -> bool:
        """Whether single requests are known, which an interval or a comparison needs."""
        return self.planned is not None


def is_replay(manifest: Manifest) -> bool:
    """Whether the run was recorded by a sender, not in an engine."""
    return manifest.engine == CLIENT


def load_words(row: Row) -> str:
    """Return the load of a row or cell in words: requests a second, or requests at once."""
    if row["rate"] is not None:
        return f"{row['rate']:g}/s"
    return NOT_RECORDED if row["concurrency"] is None else f"{row['concurrency']}"
