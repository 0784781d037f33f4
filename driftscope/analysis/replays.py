"""Summaries of replays: what the sender of the requests measured, by condition and load.

A replay is a client's trace, joined with the probes' runs that saw its requests, or the sums of
another tool's file, which a run of `driftscope ingest -o` holds in place of rows of requests, or of
a fleet's rollups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval as Within
from annotated_types import MaxLen
from numpy.typing import NDArray

from driftscope.analysis.log_changes import (
    NOTHING,
    REQUEST,
    LineAcceptance,
    LogChange,
    changes_of,
)
from driftscope.analysis.number_words import listed
from driftscope.analysis.pairing import ENOUGH_PAIRED
from driftscope.analysis.rollups import Rollups, beside_others, length_interval
from driftscope.analysis.rollups import length_ratio as ratio_of_rollups
from driftscope.analysis.statistics.intervals import Interval, exact_interval
from driftscope.analysis.statistics.ratio import (
    PairedRatio,
    PairSums,
    paired_ratio,
    ratio_intervals,
)
from driftscope.analysis.validity import PROMPT_TEXT, SERVED, Validity, validity_of
from driftscope.boundary.bounds import (
    MAX_COUNT,
    MAX_K,
    Count,
    DraftLength,
    Seconds,
    Share,
    Text,
    validated,
)
from driftscope.boundary.json_document import written_property
from driftscope.errors import DamagedTraceError
from driftscope.metrics.acceptance import mean_length
from driftscope.metrics.latency import mean_s, per_user, tokens_per_second
from driftscope.trace.manifest import CLIENT, INGESTED, Manifest
from driftscope.trace.reader import Trace
from driftscope.trace.texts import TEXTS
from driftscope.vocabulary import Ended

START, CONTENDER, SERVER_RUN, SPECULATION = "start", "contender", "server_run", "speculation"
"""Keys below `Manifest.workload` by which `driftscope pays` tells which server a replay saw: the
time of its start, its name, the folder beside the replay's into which it recorded, and how it
speculated, if it did."""
AGAIN = "again"
"""Key below `Manifest.workload`: arguments of `driftscope pays` that measure the same once more."""
TOTALS = "totals"
"""Key of the sums below INGESTED."""
MOST_PARTS = 10_000
MOST_CHANGES = 8
STEPS_OF_A_LINE = 40
"""Decode steps of a line in SGLang's log, which has no counts, unless --decode-log-interval says
otherwise: at least a round each."""
ROUNDS_AS_ONE = 100
"""Rounds of a file without rows of requests that count as one observation, accepted whole or not at
all: the worst case of requests of 100 rounds whose rounds are all alike."""
BOUNDS = f"bounds of sums: {ROUNDS_AS_ONE} rounds counted as one"
"""Words for the interval of a figure that is known as a sum."""
NO_INTERVAL = "aggregates: no interval"
"""Words for a figure of a file that has no rows of its requests."""
FLEET = "all replicas"
"""Condition of a fleet's sums."""
Length = Annotated[float, Within(ge=0.0, le=MAX_K + 1.0)]
Rate = Annotated[float, Within(ge=0.0, le=float(MAX_COUNT))]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotals:
    """Sums of one part of a file; None for what the file does not hold."""

    condition: Text
    """Part of the file, such as a benchmark or a category."""
    period: Text
    """Period that the figures of acceptance cover."""
    k: DraftLength | None = None
    requests: Count | None = None
    rounds: Count | None = None
    verified: Count | None = None
    accepted: Count | None = None
    """Draft tokens that were accepted, without the target's own."""
    mean_length: Length | None = None
    """Acceptance length, over rounds."""
    mean_length_interval: Interval | None = None
    """95% interval over requests, for a file that lists requests without their rounds."""
    mean_length_by_request: Length | None = None
    """Mean of the requests' acceptance lengths."""
    marginal: Annotated[tuple[Share | None, ...], MaxLen(MAX_K)] | None = None
    """Share of the rounds accepted at least up to each depth, depth 1 first; None for a depth that
    no round is known to have verified."""
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    throughput: Rate | None = None
    """Output tokens per second, of all requests together."""
    log_lines: Count | None = None
    """Lines of a log that report acceptance of enough draft tokens; None if the file is no log."""
    changes: Annotated[tuple[LogChange, ...], MaxLen(MOST_CHANGES)] = ()
    """Changes within a log."""

    @property
    def agreed_dead(self) -> bool:
        """Whether each line of a log, at least two, accepts next to nothing."""
        dead = [change for change in self.changes if change.by == NOTHING]
        return any(change.lines == change.of > 1 for change in dead)

    def bounds(self, share: float) -> Interval | None:
        """Return bounds of a share that is known over all rounds: the exact 95% interval, where
        ROUNDS_AS_ONE rounds, or a request if there are fewer, are one observation; each round
        is one if all lines of a log accept next to nothing. None without counts."""
        if self.agreed_dead:  # lines that agree leave no room for requests that differ
            units: float = self.rounds or STEPS_OF_A_LINE * (self.log_lines or 0)
        else:
            units = min((self.rounds or 0) / ROUNDS_AS_ONE, self.requests or math.inf)
        return exact_interval(units * min(share, 1.0), units) if units else None

    @property
    def length_bounds(self) -> Interval | None:
        """Bounds of the acceptance length; None without counts of rounds and drafted tokens."""
        k = self.k or 0
        if self.verified and self.rounds:
            k = k or math.ceil(self.verified / self.rounds)
        if not k or self.mean_length is None or not self.rounds:
            return None
        found = self.bounds((self.mean_length - 1.0) / k)
        return found and Interval.between(1.0 + k * found.low, 1.0 + k * found.high)

    def at_most(self, k: int) -> FileTotals:
        """Return the sums as if drafts were cut to `k` tokens, without a length if rates by depth
        do not say it."""
        rates = [rate for rate in (self.marginal or ())[:k] if rate is not None]
        length = 1.0 + sum(rates) if len(rates) == k else None
        return replace(self, k=k, verified=None, mean_length=length, mean_length_interval=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    totals: Annotated[tuple[FileTotals, ...], MaxLen(MOST_PARTS)] = ()


def totals_of(workload: Mapping[str, Any]) -> tuple[FileTotals, ...]:
    """Return the sums that a manifest's workload holds; () for any other replay.

    Raises ValueError for sums that no driftscope writes.
    """
    held = (workload.get(INGESTED) or {}).get(TOTALS)
    return () if held is None else validated(_Parts, {TOTALS: held}).totals


def to_workload(totals: Sequence[FileTotals]) -> list[dict[str, Any]]:
    """Return the sums as plain values for a manifest. Raises ValueError for values out of
    bounds."""
    plain = [asdict(part) for part in totals]
    validated(_Parts, {TOTALS: plain})
    return plain


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
    concurrency: int | None = None
    rate: float | None = None
    requests: int | None
    """Number of requests without warm-up; None if a file of sums does not count them."""
    answered: int | None = None
    """Number of these that were answered; None where only sums are known."""
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None = None
    throughput: float | None
    """Output tokens per second of the whole load, all conditions together."""
    rounds: int | None
    """Number of rounds; None if a file of sums does not count them."""
    mean_length: float | None
    mean_length_interval: Interval | None
    length_ratio: PairedRatio | None = None
    """Acceptance length over the baseline's, paired; of a fleet's replica, over that of the others
    on the same kinds of rounds. None in the baseline itself."""
    tpot_ratio: PairedRatio | None = None
    outcomes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Number of True values and of checked answers, by name in OUTCOMES; outcomes never checked are
    left out."""
    totals: FileTotals | None = None
    """Sums of another tool's file, which holds no rows of requests; None for a cell of rows."""

    @written_property
    def per_user(self) -> float | None:
        """Tokens per second that one user sees."""
        return per_user(self.tpot_s)

    @property
    def load(self) -> str:
        """Load in words."""
        return load_words({"rate": self.rate, "concurrency": self.concurrency})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFigures:
    """Figures of one replay, all of which its JSON document has."""

    label: str
    manifest: Manifest
    planned: int | None
    """Number of requests; None where only sums are known."""
    ended: Mapping[str, int] = field(default_factory=dict)
    cells: tuple[Cell, ...]
    joined: int = 0
    """Number of requests that a probe's run analysed with it has, too."""
    outside_s: float | None = None
    """Mean of the sender's time to first token minus the engine's, over joined requests: network,
    HTTP and the time before the engine."""
    gpu_used_bytes: int | None = None
    """Largest memory in use on all GPUs of the sender's machine together, by any process; None
    without a GPU."""
    gpu_power_w: float | None = None
    """Mean power of these GPUs together, in watts."""
    validity: Validity
    """Content of the measurement, and the smallest change that it can show."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary(ReplayFigures):
    """Summary of one replay."""

    rows: tuple[Row, ...] = ()
    """Rows that figures count: answered and not warm-up; `round` numbers the replay of one server
    that they belong to."""
    starts: int = 1
    """Number of starts of the server that the replays of it saw."""

    rollups: Rollups | None = None
    """Sums of a fleet by minute; None for any other replay."""
    texts: tuple[Path, ...] = ()
    """Run directories of these replays that keep texts."""

    def changes_in(self, cell: Cell) -> tuple[LogChange, ...]:
        """Return the changes within a log, or the requests of a cell that accept nothing."""
        if cell.totals is not None:
            return cell.totals.changes
        rows = grouped(self.rows).get((cell.condition, cell.concurrency, cell.rate), [])
        lines = [
            LineAcceptance.of_request(len(accepted), sum(accepted), sum(row["verified"] or ()))
            for row in rows
            if (accepted := row["accepted"])
        ]
        return tuple(changes_of(lines, REQUEST))

    @property
    def speculates(self) -> bool:
        """Whether the server drafts: it was started so, says so, or some request reports a
        round."""
        workload = self.manifest.workload
        if SPECULATION in workload:
            return bool(workload[SPECULATION])
        stated = (workload.get("server") or {}).get("speculates")
        rounds = any(cell.rounds or cell.mean_length is not None for cell in self.cells)
        return stated if isinstance(stated, bool) else rounds

    @property
    def url(self) -> str:
        """Address of the server; "" if it is not known."""
        url = (self.manifest.workload.get("server") or {}).get("url")
        return str(url or "").removesuffix("/v1")

    @property
    def server_ids(self) -> set[str]:
        """Ids of the probes' runs that have some of its requests."""
        return {row["server_run_id"] for row in self.rows if row.get("server_run_id")}

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


Key = tuple[str, int | None, float | None]
"""Condition, concurrency and rate."""


def grouped(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows by condition and load."""
    out: dict[Key, list[Row]] = {}
    for row in rows:
        out.setdefault((row["condition"], row["concurrency"], row["rate"]), []).append(row)
    return out


def pair_sums(
    rows: Iterable[Row], parts: Callable[[Row], tuple[float | None, float | None]]
) -> PairSums:
    """Return the sums of numerator and denominator, which `parts` returns of a row, by pair; rows
    that lack one are left out."""
    out: dict[str, tuple[float, float]] = {}
    for row in rows:
        top, bottom = parts(row)
        if top is not None and bottom is not None:
            before = out.get(row["pair"], (0.0, 0.0))
            out[row["pair"]] = (before[0] + top, before[1] + bottom)
    return out


def lengths(rows: Iterable[Row]) -> PairSums:
    """Return the tokens that the rounds of each pair yielded, and the number of rounds."""
    some = (row for row in rows if row["accepted"])
    return pair_sums(
        some, lambda row: (sum(row["accepted"]) + len(row["accepted"]), len(row["accepted"]))
    )


def tpots(rows: Iterable[Row]) -> PairSums:
    """Return the sum of times per output token of each pair, and their number."""
    return pair_sums(rows, lambda row: (row["tpot_s"], 1.0))


_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_CHOICE = re.compile(r"-\d+$")


def joined_with(rows: Sequence[Row], servers: Sequence[Trace]) -> tuple[int, list[Row]]:
    """Return how many of `rows` the servers know, and the rows with the servers' data added."""
    known = {
        name: facts for server in servers for name, facts in _requests_by_client_id(server).items()
    }
    out, joined = [], 0
    for row in rows:
        facts = known.get(row["response"] or "")
        joined += facts is not None
        out.append(row if facts is None else {**row, **_times_at_server(row, facts)})
    return joined, out


def _times_at_server(row: Row, seen: Row) -> dict[str, Any]:
    mine, theirs = row["ttft_s"], seen["ttft_s"]
    known = mine is not None and theirs is not None
    return {
        "accepted": row["accepted"] or seen["accepted"] or None,
        "outside_s": mine - theirs if known else None,
        "server_ttft_s": theirs,
        "server_tpot_s": seen["tpot_s"],
        "server_run_id": seen["server_run_id"],
    }


def _requests_by_client_id(server: Trace) -> dict[str, dict[str, Any]]:
    """Return a probe's requests by the id that the client received."""
    out: dict[str, dict[str, Any]] = {}
    for row in server.request.select(["request", "ttft_s", "tpot_s"]).to_pylist():
        times = {"ttft_s": row["ttft_s"], "tpot_s": row["tpot_s"]}
        facts = {**times, "server_run_id": server.manifest.run_id, "accepted": []}
        out[external_id(row["request"])] = facts
    rounds = server.verify.select(["request", "verified", "accepted"]).to_pylist()
    for row in rounds:
        known = out.get(external_id(row["request"]))
        if known is not None and row["verified"]:
            known["accepted"].append(row["accepted"])
    return out


def external_id(internal: str) -> str:
    """Return the id in vLLM's answer for an internal one: the client of "cmpl-x-0-1a2b3c4d"
    received "cmpl-x".

    The engine adds eight random hexadecimal digits, and the completions endpoint adds the number of
    the prompt.
    """
    name = _SUFFIX.sub("", internal)
    return _CHOICE.sub("", name) if name.startswith("cmpl-") else name


def cells_of(
    measured: Sequence[Row], answered: Sequence[Row], workload: Mapping[str, Any]
) -> tuple[Cell, ...]:
    """Return the cells by load, the baseline first, then the other conditions in the suite's
    order."""
    planned, done = grouped(measured), grouped(answered)
    baseline, listed = str(workload.get("baseline", "")), list(workload.get("conditions", ()))
    place = {name: number for number, name in enumerate(listed)}
    order = sorted(
        planned, key=lambda k: (k[1] or 0, k[2] or 0.0, k[0] != baseline, place.get(k[0], 0), k[0])
    )
    # Conditions run at the same time, so those of one load share their throughput.
    loads: dict[tuple[int | None, float | None], list[Row]] = {}
    for row in answered:
        loads.setdefault((row["concurrency"], row["rate"]), []).append(row)
    speeds = {load: throughput_of(some) for load, some in loads.items()}
    return tuple(
        _cell(
            key,
            len(planned[key]),
            done.get(key, []),
            done.get((baseline, *key[1:]), []) if key[0] != baseline else [],
            speeds.get(key[1:]),
        )
        for key in order
    )


def _cell(
    key: Key, planned: int, rows: Sequence[Row], baseline: Sequence[Row], speed: float | None
) -> Cell:
    yielded = lengths(rows)
    rounds = int(sum(bottom for _, bottom in yielded.values()))
    tokens = sum(top for top, _ in yielded.values())
    return Cell(
        condition=key[0],
        concurrency=key[1],
        rate=key[2],
        requests=planned,
        answered=len(rows),
        ttft_s=_mean(rows, "ttft_s"),
        tpot_s=_mean(rows, "tpot_s"),
        e2e_s=_mean(rows, "e2e_s"),
        throughput=speed,
        rounds=rounds,
        mean_length=mean_length(tokens - rounds, rounds) if rounds else None,
        mean_length_interval=_length_interval(yielded),
        length_ratio=paired_ratio(yielded, lengths(baseline)),
        tpot_ratio=paired_ratio(tpots(rows), tpots(baseline)),
        outcomes={name: counts for name in OUTCOMES if (counts := _counted(rows, name))[1]},
    )


def throughput_of(rows: Sequence[Row]) -> float | None:
    """Return the output tokens per second of all `rows` of one load together, over the time in
    which each round of them was served; None if a server did not count its tokens."""
    if any(row["output_tokens"] is None for row in rows):
        return None
    rounds: dict[int, list[Row]] = {}
    for row in rows:
        rounds.setdefault(row["round"], []).append(row)
    lasted_s = sum(
        max(row["time_s"] for row in some) - min(row["sent_s"] for row in some)
        for some in rounds.values()
    )
    return tokens_per_second(sum(row["output_tokens"] for row in rows), lasted_s)


def _length_interval(sums: PairSums) -> Interval | None:
    if len(sums) < 2:
        return None
    values = np.array([sums[key] for key in sorted(sums)])
    intervals = ratio_intervals(values[:, :1], values[:, 1:])
    if not intervals or intervals[0] is None:
        return None
    # A round yields at least one token, which an interval over few prompts may not reflect.
    return intervals[0].within(1.0, np.inf)


def _mean(rows: Iterable[Row], name: str) -> float | None:
    return mean_s([row[name] for row in rows if row[name] is not None])


def _counted(rows: Iterable[Row], name: str) -> tuple[int, int]:
    recorded = [row[name] for row in rows if row[name] is not None]
    return sum(recorded), len(recorded)


def summarise_replay(
    trace: Trace, label: str, servers: Sequence[Trace] = (), later: Sequence[Trace] = ()
) -> ReplaySummary:
    """Summarise a replay, and the `later` rounds of it against the same server; `servers` are
    probes' runs, which may contain some of its requests."""
    traces = (trace, *later)
    rows: list[Row] = [
        {**row, "round": number}
        for number, one in enumerate(traces)
        for row in one.client.sort_by("order").to_pylist()
    ]
    sums = _totals(trace)
    measured = [row for row in rows if not row["warmup"]]
    answered = [row for row in measured if row["ended"] == Ended.ANSWERED]
    joined, answered = joined_with(answered, servers)
    ended: dict[str, int] = {}
    for row in rows:
        ended[row["ended"]] = ended.get(row["ended"], 0) + 1
    outside = [row["outside_s"] for row in answered if row.get("outside_s") is not None]
    starts = len({one.manifest.workload.get(START, n) for n, one in enumerate(traces)})
    cells = (
        *cells_of(measured, answered, trace.manifest.workload),
        *(cell_of_sums(part) for part in sums),
    )
    runs = {row.get("server_run_id") for row in answered}
    rules = {one.manifest.verification for one in servers if one.manifest.run_id in runs} - {None}
    return ReplaySummary(
        label=label,
        manifest=replace(trace.manifest, verification=listed(sorted(map(str, rules))) or None),
        planned=len(rows) if rows or not sums else None,
        ended=dict(sorted(ended.items())),
        cells=cells,
        joined=joined,
        outside_s=mean_s(outside),
        **_gpus(traces),
        validity=_validity(
            trace.manifest.workload,
            answered,
            cells,
            warmup=len(rows) - len(measured),
            starts=starts,
        ),
        rows=tuple(answered),
        starts=starts,
        problems=tuple(problem for one in traces for problem in one.problems),
        texts=tuple(one.path for one in traces if one.manifest.workload.get(TEXTS)),
    )


def _validity(
    workload: Mapping[str, Any],
    rows: Sequence[Row],
    cells: Sequence[Cell],
    *,
    warmup: int,
    starts: int,
) -> Validity:
    """Return the validity of a replay; its smallest changes are those of the first condition at the
    first load."""
    first = cells[0] if cells else None
    length: tuple[float | None, Interval | None] = (None, None)
    times: PairSums = {}
    if first is not None:
        key = (first.condition, first.concurrency, first.rate)
        times = tpots(grouped(rows).get(key, []))
        measured = first.totals is None or first.totals.mean_length_interval is not None
        length = (first.mean_length, first.mean_length_interval if measured else None)
    return validity_of(
        workload,
        rows,
        warmup=None if INGESTED in workload else warmup,
        length=length,
        tpot=[total / number for total, number in times.values()],
        starts=starts,
    )


def _totals(trace: Trace) -> tuple[FileTotals, ...]:
    try:
        return totals_of(trace.manifest.workload)
    except ValueError as error:
        raise DamagedTraceError(
            f"{trace.path}: its manifest holds sums that no driftscope writes ({error}); write the "
            "run again from its file"
        ) from error


def cell_of_sums(sums: FileTotals) -> Cell:
    """Return the figures that sums support, with bounds where they have counts."""
    return Cell(
        condition=sums.condition,
        requests=sums.requests,
        ttft_s=sums.ttft_s,
        tpot_s=sums.tpot_s,
        throughput=sums.throughput,
        rounds=sums.rounds,
        mean_length=sums.mean_length,
        mean_length_interval=sums.mean_length_interval or sums.length_bounds,
        totals=sums,
    )


def summarise_rollups(rollups: Rollups, label: str) -> ReplaySummary:
    """Summarise a fleet's rollups: all rounds, then those of each label, adapter, kind of text and
    context, then the replicas, the worst beside the others first."""
    names, ratios = rollups.replicas, beside_others(rollups)
    everything = np.full(len(rollups.depth), True)
    whole_fleet = FLEET if len(names) > 1 else names[0]
    cells = [_cell_of_rollups(rollups, whole_fleet, everything)]
    for kind in ("label", "adapter", "region", "context"):
        values, place = rollups.values_of(kind)
        for at, value in enumerate(values) if len(values) > 1 else ():
            to = f" to {2 * int(value) - 1}" if kind == "context" else ""
            what = f"{kind} {value or 'none'}{to}".replace("region", "text")
            cells.append(_cell_of_rollups(rollups, what, place == at))
    known = [(ratio.value if ratio else math.inf, names[at], at) for at, ratio in enumerate(ratios)]
    for _, name, at in sorted(known) if len(names) > 1 else ():
        cell = _cell_of_rollups(rollups, name, rollups.replica == at)
        cells.append(replace(cell, length_ratio=ratios[at]))
    length = (cells[0].mean_length, cells[0].mean_length_interval)
    return ReplaySummary(
        label=label,
        manifest=rollups.manifest,
        planned=None,
        cells=tuple(cells),
        validity=validity_of({PROMPT_TEXT: SERVED}, (), warmup=None, length=length, tpot=()),
        rollups=rollups,
    )


def _cell_of_rollups(rollups: Rollups, condition: str, rows: NDArray[np.bool_]) -> Cell:
    depth = rollups.depth[rows]
    sums = (np.bincount(depth, some[rows])[1:] for some in (rollups.rounds, rollups.accepted))
    rounds, accepted = (some.astype(np.int64).tolist() for some in sums)
    return cell_of_sums(
        FileTotals(
            condition=condition,
            period=rollups.period,
            k=len(rounds),
            rounds=rounds[0],
            verified=sum(rounds),
            accepted=sum(accepted),
            mean_length=mean_length(sum(accepted), rounds[0]),
            mean_length_interval=length_interval(rollups, rows),
            marginal=tuple(a / n if n else None for a, n in zip(accepted, rounds, strict=True)),
        )
    )


def _gpus(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the largest memory and mean power; a sample is one row per GPU, all with the same
    time."""
    used: dict[float, int] = {}
    power: dict[float, float] = {}
    for row in (row for trace in traces for row in trace.resource.to_pylist()):
        when = row["time_s"]
        if row["gpu_used_bytes"] is not None:
            used[when] = used.get(when, 0) + row["gpu_used_bytes"]
        if row["gpu_power_w"] is not None:
            power[when] = power.get(when, 0.0) + row["gpu_power_w"]
    return {
        "gpu_used_bytes": max(used.values(), default=None),
        "gpu_power_w": mean_s(list(power.values())),
    }


SPAN = "span of minutes"
"""Basis of a comparison of rollups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    """Comparison of two replays of the same prompts, in one condition and load."""

    first: str
    other: str
    condition: str
    load: str
    length_ratio: PairedRatio | None
    """Ratio of the other replay's acceptance length to the first one's; None if prompts of one name
    differ."""
    tpot_ratio: PairedRatio | None = None
    same_text: tuple[int, int] = (0, 0)
    """Number of greedy pairs with identical answers, and of greedy pairs."""
    outcomes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Number of pairs in which only the first was bad, in which only the other was bad, and of all
    pairs, by name in OUTCOMES."""
    basis: str = "prompt"
    """Unit of the pairs: a prompt, or a span of minutes of rollups, which are compared on the same
    labels, adapters, texts and contexts."""


def versus(first: ReplaySummary, other: ReplaySummary) -> tuple[ReplayComparison, ...]:
    """Compare two replays by condition, where both asked the same prompts, or two fleets."""
    out = []
    if first.rollups is not None and other.rollups is not None:
        ratio = ratio_of_rollups(first.rollups, other.rollups)
        fleets = ReplayComparison(
            first=first.label,
            other=other.label,
            condition=FLEET,
            load=NOT_RECORDED,
            length_ratio=ratio,
            basis=SPAN,
        )
        return () if ratio is None else (fleets,)
    mine, theirs = grouped(first.rows), grouped(other.rows)
    for cell in first.cells:
        key = (cell.condition, cell.concurrency, cell.rate)
        a, b = mine.get(key, []), theirs.get(key, [])
        if not {_pair(row) for row in a} & {_pair(row) for row in b}:
            continue
        greedy = [
            (x, y) for x, y in row_pairs(a, b) if x["temperature"] == 0 and y["temperature"] == 0
        ]
        out.append(
            ReplayComparison(
                first=first.label,
                other=other.label,
                condition=key[0],
                load=load_words(a[0]),
                length_ratio=paired_ratio(lengths(b), lengths(a)) if same_prompts(a, b) else None,
                tpot_ratio=paired_ratio(tpots(b), tpots(a)) if same_prompts(a, b) else None,
                same_text=(sum(x["digest"] == y["digest"] for x, y in greedy), len(greedy)),
                outcomes={name: changes for name in OUTCOMES if (changes := _changes(a, b, name))},
            )
        )
    return tuple(out)


def _pair(row: Row) -> tuple[str, int, int]:
    return row["pair"], row["repeat"], row["round"]


def row_pairs(a: Iterable[Row], b: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Return the rows of two replays that asked one prompt at the same turn."""
    rows_by_prompt = {_pair(row): row for row in a}
    return [(rows_by_prompt[_pair(row)], row) for row in b if _pair(row) in rows_by_prompt]


def same_prompts(a: Iterable[Row], b: Iterable[Row]) -> bool:
    """Return whether prompts of one name have one length in two replays: a file of prompts may have
    been edited between them."""
    lengths = [(x["prompt_tokens"], y["prompt_tokens"]) for x, y in row_pairs(a, b)]
    known = [mine == theirs for mine, theirs in lengths if None not in (mine, theirs)]
    return bool(sum(known) >= ENOUGH_PAIRED * len(known))


def _changes(a: Iterable[Row], b: Iterable[Row], name: str) -> tuple[int, int, int] | None:
    both = [(x, y) for x, y in row_pairs(a, b) if x[name] is not None and y[name] is not None]
    bad = [(x[name] != (name in GOOD), y[name] != (name in GOOD)) for x, y in both]
    if not bad:
        return None
    return sum(x and not y for x, y in bad), sum(y and not x for x, y in bad), len(bad)
