"""Test conclusions from other tools' files, logs and sums, and the smallest change they show.

Lines of a log are made as vLLM prints them, one for each 10 s, from rounds of known truth. Lines
that follow each other may be alike without any change: what runs in one runs in the next. Sums hold
no spread; their worst case is that all rounds of a request are alike. Wanted: at most 6.8 % of 400
files show a change, a dead drafter or a difference that is not there, and 80 % show one that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.calibration.runs import chance, measurement
from benchmarks.calibration.table import MOSTLY, NEVER, Bound, Figures, found, table
from driftscope.analysis.replays import FileTotals, ReplaySummary, cell_of_sums
from driftscope.analysis.statistics.intervals import Interval, ratio
from driftscope.analysis.statistics.ratio import ratio_intervals
from driftscope.analysis.validity import smallest_change
from driftscope.cli.screens.replay import difference_sentence
from driftscope.findings.case import ReplayCase
from driftscope.findings.rules_compare import replay_accepts_nothing
from driftscope.ingest.base import ResultFile
from driftscope.ingest.server_log import server_log

K, ROUNDS = 3, 100
"""Draft tokens of a round, and rounds of a request."""
_LOAD = (
    "INFO 11-02 {at} [loggers.py:257] Engine 000: Avg prompt throughput: 12.1 tokens/s, Avg "
    "generation throughput: 60.2 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache "
    "usage: {usage:.1f}%, Prefix cache hit rate: 0.0%"
)
_METRICS = (
    "INFO 11-02 {at} [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {length:.2f}, "
    "Accepted throughput: 95.30 tokens/s, Drafted throughput: 150.00 tokens/s, Accepted: "
    "{accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg "
    "Draft acceptance rate: 63.7%"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Truth of the logs of one world."""

    lines: int = 32
    over_time: float = 0.0
    """Logit shift of acceptance at the last line, reached linearly."""
    with_usage: float = 0.0
    """Logit shift of acceptance at a full cache."""
    alike: float = 0.0
    """Correlation of a line's own shift with that of the line before."""
    own: float = 0.15
    """Standard deviation of a line's own logit shift."""


LOGS = {
    "nothing changes, 8 lines": Log(lines=8),
    "nothing changes": Log(),
    "lines are alike": Log(alike=0.7, own=0.3),
    "lines are alike, 120 lines": Log(alike=0.7, own=0.3, lines=120),
    "falls over time": Log(over_time=-1.2),
    "falls over time, lines are alike": Log(over_time=-1.6, alike=0.5, lines=60),
    "falls with the context": Log(with_usage=-1.2),
}


def text_of(log: Log, seed: int) -> str:
    """Return a log of vLLM."""
    source = np.random.default_rng([seed, 171])
    usage = source.permutation(np.linspace(5.0, 80.0, log.lines))
    own, rows = 0.0, list[str]()
    for at in range(log.lines):
        own = log.alike * own + math.sqrt(1 - log.alike**2) * source.normal(0.0, log.own)
        shift = log.over_time * at / (log.lines - 1) + log.with_usage * usage[at] / 100.0
        rates = chance(0.9 + own + shift)
        rounds = 1 + int(source.poisson(250))
        reached = np.minimum.accumulate(source.random((rounds, K)) < rates, axis=1)
        time = f"12:{at // 6:02d}:{10 * (at % 6):02d}"
        rows.append(_LOAD.format(at=time, running=int(source.integers(3, 9)), usage=usage[at]))
        rows.append(
            _METRICS.format(
                at=time,
                length=1 + reached.sum() / rounds,
                accepted=reached.sum(),
                drafted=K * rounds,
                rates=", ".join(f"{rate:.3f}" for rate in reached.mean(axis=0)),
            )
        )
    return "\n".join(rows)


def _expected(log: Log) -> dict[str, Bound]:
    if not (log.over_time or log.with_usage):
        return {"over_time": NEVER, "with_load": NEVER}
    return {"over_time" if log.over_time else "with_load": MOSTLY}


@table(
    "server_logs",
    "Logs of servers, {trials} each: share that shows a change of acceptance",
    worlds=LOGS,
    wanted=_expected,
)
def logs(log: Log, seed: int) -> Figures:
    """Return whether one log shows a change over time, or with the load or the context."""
    files = server_log(ResultFile(path=Path("log"), text=text_of(log, seed)))
    statements = " ".join(change.statement for figures in files for change in figures.changes)
    return {"over_time": "first quarter" in statements, "with_load": "between lines" in statements}


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsFile:
    """Truth of one file of sums."""

    chance: float = 0.7
    """Probability that a draft token is accepted, given those before it."""
    requests: int = 400
    whole: bool = False
    """Whether all rounds of a request accept everything, or all nothing: the worst case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsFiles:
    """Two files of one world, of which the first may be dead."""

    first: SumsFile
    other: SumsFile = SumsFile()
    dead: bool = False
    differ: bool = False


FILES = {
    "one drafter": SumsFiles(first=SumsFile()),
    "one drafter, rounds of a request alike": SumsFiles(
        first=SumsFile(whole=True), other=SumsFile(whole=True)
    ),
    "accepts a fifth less": SumsFiles(first=SumsFile(chance=0.6), differ=True),
    "dead": SumsFiles(first=SumsFile(chance=0.001), dead=True, differ=True),
    "as bad as the bound": SumsFiles(first=SumsFile(chance=0.05), differ=True),
    "as bad as the bound, rounds of a request alike": SumsFiles(
        first=SumsFile(chance=0.05, whole=True), differ=True
    ),
    "dead, 10 requests": SumsFiles(first=SumsFile(chance=0.001, requests=10), differ=True),
}


def sums_of(file: SumsFile, label: str, source: np.random.Generator) -> ReplaySummary:
    """Return a file that holds sums only."""
    shape = (file.requests, 1 if file.whole else ROUNDS, 1 if file.whole else K)
    hit = source.random(shape) < file.chance
    hit = np.broadcast_to(hit, (file.requests, ROUNDS, K))
    reached = np.minimum.accumulate(hit, axis=2)
    rounds = file.requests * ROUNDS
    totals = FileTotals(
        condition="all requests",
        period="this run",
        k=K,
        requests=file.requests,
        rounds=rounds,
        verified=K * rounds,
        accepted=int(reached.sum()),
        mean_length=1.0 + float(reached.sum()) / rounds,
        marginal=tuple(reached.mean(axis=(0, 1)).tolist()),
    )
    return measurement(label, {}, cells=(cell_of_sums(totals),))


@table(
    "file_sums",
    "Files that hold sums only, {trials} pairs each: share of conclusions",
    worlds=FILES,
    wanted=lambda files: {
        "dead": MOSTLY if files.dead else NEVER,
        "differ": MOSTLY if files.differ else NEVER,
    },
)
def sums(files: SumsFiles, seed: int) -> Figures:
    """Return whether the first of two files is said to accept nothing, and both to differ."""
    source = np.random.default_rng([seed, 172])
    first, other = sums_of(files.first, "a", source), sums_of(files.other, "b", source)
    return {
        "dead": replay_accepts_nothing(ReplayCase(run=first)) is not None,
        "differ": bool(difference_sentence(first, other)),
    }


def _measured(source: np.random.Generator, requests: int, level: float) -> tuple[float, Interval]:
    """Return an acceptance length and its interval; requests differ in how easy they are."""
    rounds = source.poisson(20, requests) + 5
    easy = source.beta(4.0, 3.0, requests)
    tokens = rounds * (1.0 + 4.0 * easy) * level
    sums = np.stack([tokens + source.normal(0, np.sqrt(2.0 * rounds)), rounds], axis=1)
    (interval,) = ratio_intervals(sums[:, :1], sums[:, 1:])
    assert interval is not None
    return float(sums[:, 0].sum() / sums[:, 1].sum()), interval


@table(
    "smallest_change",
    "The smallest change of the acceptance length that a measurement states, {trials} trials",
    worlds={"24 requests of mixed ease": 24, "100 requests of mixed ease": 100},
    wanted=lambda _: {
        "seen_none": NEVER,
        "seen_smallest": found(0.75),
        "seen_half": Bound(most=0.5),
    },
)
def smallest_changes(requests: int, seed: int) -> Figures:
    """Return the smallest change that a first measurement states, and whether a second one is
    called different that has none, that one, or half of it."""
    source = np.random.default_rng([seed, requests])
    first = _measured(source, requests, 1.0)
    size = smallest_change(*first) or 0.0
    seen = {"smallest": size}
    for name, change in (("none", 0.0), ("smallest", size), ("half", size / 2)):
        times = ratio(*_measured(source, requests, 1.0 + change), *first)
        seen[f"seen_{name}"] = times is not None and not times[1].low <= 1.0 <= times[1].high
    return seen
