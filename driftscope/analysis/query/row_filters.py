"""Filters of a run's rows: conditions on rows and on what is known of their requests and run, the
ways to split them, and the updates of the served weights between them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import numpy as np

from driftscope.analysis.condition_columns import OF_REGIONS, OF_REQUESTS, OF_RUNS, WEIGHTS, Names
from driftscope.analysis.conditions import Condition, condition_of
from driftscope.analysis.query.query_engine import Dialect, Matrix
from driftscope.errors import UsageError
from driftscope.trace.manifest import Manifest
from driftscope.trace.ranks import place_of
from driftscope.trace.status import Status, WeightUpdate
from driftscope.vocabulary import Language, Region

LISTS = (
    *("region_starts", "region_codes", "region_languages"),
    *("region_boundaries", "region_copies"),
)
"""Columns of RequestRow from which regions of rounds follow."""
_TOKEN = "(t.position + 2 - r.prompt_tokens)"  # noqa: S105  a token of text, no secret
"""Place of a round's first drafted token in the answer; the request is `r`, the round `t`."""


def region_column(name: str, dialect: Dialect) -> str:
    """Return the SQL of a column of `OF_REGIONS`, for a round `t` joined with its request `r`."""
    if name == "boundary":
        place = dialect.number_up_to("r.region_boundaries", _TOKEN)
        return f"{_TOKEN} - {dialect.element('r.region_boundaries', place)}"
    if name == "copied":
        place = dialect.number_up_to("r.region_copies", _TOKEN)
        return f"CASE WHEN r.region_copies IS NOT NULL THEN {place} % 2 END"
    codes, vocabulary = {
        "region": ("r.region_codes", Region.ALL),
        "language": ("r.region_languages", Language.ALL),
    }[name]
    place = dialect.number_up_to("r.region_starts", _TOKEN)
    names = " ".join(f"WHEN {at} THEN {dialect.text(name)}" for at, name in enumerate(vocabulary))
    return f"CASE {dialect.element(codes, place)} {names} END"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Filter of the rows to keep; by default it keeps all rows."""

    where: str | None = None
    """Condition, see `driftscope.analysis.conditions`."""
    since: str | None = None
    """Span such as "2h", counted back from the last round, or a time in ISO 8601."""

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid condition, before anything is read."""
        if self.where is not None:
            condition_of(self.where)

    def conditions(self, last_s: float) -> tuple[Condition, ...]:
        """Return the conditions that rows must meet; `last_s` is the time of the last round. Raises
        UsageError."""
        texts = [] if self.where is None else [self.where]
        begin_s = self.begin_s(last_s)
        if math.isfinite(begin_s):  # a run without rounds has no last one
            texts.append(f"time_s >= {begin_s!r}")
        return tuple(condition_of(text) for text in texts)

    def begin_s(self, last_s: float) -> float:
        """Return the Unix time before which rows are dropped, minus infinity if none are; `last_s`
        is the time of the last round. Raises UsageError."""
        return -math.inf if self.since is None else since_s(self.since, last_s)


MAX_SPAN_S = 1e10
"""Longest span in seconds, three centuries: beyond it, a time has no precision left for fractions
of a second."""
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span_s(text: str) -> float | None:
    """Return the seconds of a span such as "30m"; None for any other text, and beyond
    MAX_SPAN_S."""
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else None
    return None if seconds is None or seconds > MAX_SPAN_S else seconds


def since_s(text: str, last_s: float) -> float:
    """Return the Unix time that a --since stands for; raises UsageError."""
    if (span := span_s(text)) is not None:
        return last_s - span
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: neither a span such as 30m, 2h or 1d nor a time in ISO 8601"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def wide(
    source: str,
    columns: Sequence[str],
    names: Names,
    constants: Mapping[str, str | None],
    dialect: Dialect,
) -> str:
    """Return SQL for the rows of `source`, which has `columns`, as `t` with all of `names` added.

    `constants` is the SQL of columns that are equal in all rows; None if rows differ.
    """
    missing = names - set(columns)
    more, joins = ["t.*"], []
    if "context" in missing:
        more.append("t.position + 1 AS context")
    if "batch" in missing:
        more.append("b.batch")
        joins.append(_with(_BATCHES, "b", ("replica", "step")))
    if "k" in missing:
        more.append("t.verified AS k")
    more += [f"{constants[name]} AS {name}" for name in OF_RUNS if name in missing]
    of_requests = [name for name in OF_REQUESTS if name in missing]
    of_regions = [name for name in OF_REGIONS if name in missing]
    if of_requests or of_regions:
        more += [f"r.{name}" for name in of_requests]
        more += [f"{region_column(name, dialect)} AS {name}" for name in of_regions]
        kept = (*OF_REQUESTS, *LISTS) if of_regions else OF_REQUESTS
        joins.append(_with(_requests(kept), "r", ("replica", "request")))
    if "execution" in missing and constants["execution"] is not None:
        more.append(f"{constants['execution']} AS execution")
    elif "execution" in missing:
        more.append("d.execution")
        joins.append(_with(_DRAWN, "d", ("replica", "request", "position")))
    return f"SELECT {', '.join(more)} FROM {source} t {' '.join(joins)}"


def constants_of(
    manifest: Manifest,
    executions: Sequence[str],
    updates: Mapping[int, Sequence[float]],
    dialect: Dialect,
) -> dict[str, str | None]:
    """Return the argument `constants` of `wide`, for a run whose steps had these executions, and
    whose replicas got other weights at the times `updates`."""
    modes = set(executions)
    number = " ".join(
        f"WHEN t.replica = {replica} AND t.time_s >= {time_s!r} THEN {before + 1}"
        for replica, times in sorted(updates.items())
        for before, time_s in reversed(list(enumerate(times)))
    )
    return {
        WEIGHTS: f"CASE {number} ELSE 0 END" if number else "0",
        "runner": dialect.text(manifest.runner),
        "mode": dialect.text(manifest.mode),
        "execution": dialect.text(modes.pop()) if len(modes) == 1 else None,
    }


def _requests(columns: Sequence[str]) -> str:
    kept = ", ".join(f"max({name}) AS {name}" for name in columns)
    return f"SELECT replica, request, {kept} FROM request_all GROUP BY replica, request"


_BATCHES = "SELECT replica, step, count(*) AS batch FROM verify_all GROUP BY replica, step"
_DRAWN = (
    "SELECT replica, request, position, max(execution) AS execution FROM draft_all "
    "GROUP BY replica, request, position"
)


def _with(rows: str, name: str, key: Sequence[str]) -> str:
    return f"LEFT JOIN ({rows}) {name} ON {' AND '.join(f't.{k} = {name}.{k}' for k in key)}"


_POWER = "lpad(cast(cast(floor(log2(greatest({}, 1))) AS int) AS varchar(9)), 2, '0')"
_WINDOW = "lpad(cast(cast(floor((time_s - {}) / {}) AS bigint) AS varchar(20)), 15, '0')"
NEAR_TOKENS = 4
"""Number of a block's first tokens that are called near its boundary."""
TEXT_SEPARATOR = "|"
_NOT_RECORDED = "(not recorded)"
_BOUNDARY = (
    f"CASE WHEN region IS NULL THEN '{_NOT_RECORDED}' WHEN boundary IS NULL THEN 'none before' "
    "WHEN boundary < 4 THEN '00 to 03' WHEN boundary < 16 THEN '04 to 15' ELSE '16 and more' END"
)
"""Tokens since the last boundary, see `RequestRow.region_boundaries`."""
_NEARNESS = {
    "00 to 03": "0 to 3 tokens after a boundary",
    "04 to 15": "4 to 15 tokens after a boundary",
    "16 and more": "16 and more tokens after a boundary",
}
BY_LABEL = "label"
"""Way to split a run if no other is asked for."""
BY_K = "k"
"""Split by the number of tokens that a round verified, or that a recorded chain has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Expression for the bucket of a row, as text that sorts."""

    sql: str
    """SQL that all engines understand; it contains no text from a user."""
    names: Names
    """Columns of `driftscope.analysis.conditions` that the SQL uses."""


def _bucket(column: str, sql: str) -> Bucket:
    return Bucket(sql=sql.format(column), names=frozenset((column,)))


BY: Mapping[str, Bucket] = {
    BY_LABEL: _bucket("label", "coalesce({}, '(unlabelled)')"),
    "adapter": _bucket("adapter", "coalesce({}, '(no adapter)')"),
    WEIGHTS: _bucket(WEIGHTS, "lpad(cast({} AS varchar(4)), 4, '0')"),
    "context": _bucket("context", _POWER),
    "prompt": _bucket("prompt_tokens", _POWER),
    "batch": _bucket("batch", "lpad(cast({} AS varchar(9)), 4, '0')"),
    "temperature": _bucket("temperature", "cast({} AS varchar(20))"),
    "structured": _bucket("structured", "coalesce({}, '(not stated)')"),
    "finish": _bucket("finish_reason", "{}"),
    "execution": _bucket("execution", "coalesce({}, '(not recorded)')"),
    "runner": _bucket("runner", "{}"),
    "mode": _bucket("mode", "{}"),
    BY_K: _bucket("k", "lpad(cast({} AS varchar(4)), 4, '0')"),
    "replica": _bucket("replica", "cast({} AS varchar(9))"),
    "region": _bucket("region", f"coalesce({{}}, '{_NOT_RECORDED}')"),
    "language": _bucket("language", f"coalesce({{}}, '{_NOT_RECORDED}')"),
    "boundary": Bucket(sql=_BOUNDARY, names=frozenset(("region", "boundary"))),
    "copied": _bucket(
        "copied", f"CASE {{}} WHEN 1 THEN 'copied' WHEN 0 THEN 'new' ELSE '{_NOT_RECORDED}' END"
    ),
}
"""Ways to split a run, apart from spans of time, each with the bucket of a row."""
TEXT = Bucket(
    sql=f"region || '{TEXT_SEPARATOR}' || CASE WHEN boundary < {NEAR_TOKENS} THEN 'near' "
    f"ELSE 'far' END || '{TEXT_SEPARATOR}' || cast(copied AS varchar(1)) || '{TEXT_SEPARATOR}' || "
    f"{_POWER.format('position - prompt_tokens + 2')}",
    names=frozenset(("region", "boundary", "copied", "position", "prompt_tokens")),
)
"""Bucket of a round's kind of text, whether a block begins right before it, whether it is copied,
and the power of two at or below its place in the answer; null where regions were not recorded."""
BY_HOUR = "hour"
WINDOWS = "or a time span such as 10m"
_HOUR_S = 3600.0
MIN_SPAN_S = 1e-3
"""Shortest span in seconds; times of rounds are no more precise."""


def bucket_of(by: str, begin_s: float) -> Bucket:
    """Return the bucket of rows of a run that begins at `begin_s`, Unix time.

    Raises UsageError for an unknown way to split.
    """
    if by in BY:
        return BY[by]
    span = _HOUR_S if by == BY_HOUR else span_s(by)
    if span is None or span < MIN_SPAN_S:
        raise UsageError(f"--by {by!r}: not one of {', '.join((*BY, BY_HOUR))}, {WINDOWS}")
    begin_s = begin_s if math.isfinite(begin_s) else 0.0  # a run without rounds
    return Bucket(sql=_WINDOW.format(repr(begin_s), repr(span)), names=frozenset(("time_s",)))


def name_of(by: str, bucket: str) -> str:
    """Return the name of a segment."""
    if by in ("context", "prompt"):
        return f"{2 ** int(bucket):,} to {2 ** (int(bucket) + 1) - 1:,} tokens"
    if by == "batch":
        return f"batch {int(bucket)}"
    if by == BY_K:
        return f"K = {int(bucket)}"
    if by == WEIGHTS:
        return f"after update {int(bucket)}" if int(bucket) else "as started"
    if by == "boundary":
        return _NEARNESS.get(bucket, bucket)
    if by == BY_HOUR:
        return f"hour {int(bucket) + 1}"
    if span_s(by):
        amount, unit = float(by.strip()[:-1]), by.strip()[-1]
        return f"{int(bucket) * amount:g} to {(int(bucket) + 1) * amount:g} {unit}"
    return bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update of the weights of one replica, between two of its rounds."""

    number: int
    """Updates so far, from 1."""
    time_s: float
    """Unix time at which the new weights were in place."""
    models: tuple[str, ...]
    """Models that changed: TARGET, DRAFTER or both."""
    version: str | None
    """Name of the new weights, if the engine was given one."""

    @property
    def name(self) -> str:
        """Name of the weights in words."""
        version = f" ({self.version})" if self.version else ""
        return f"update {self.number}{version}"


def noted_updates(statuses: Iterable[Status]) -> dict[int, list[WeightUpdate]]:
    """Return what each replica's first rank and engine core noted, by time."""
    noted: defaultdict[int, list[WeightUpdate]] = defaultdict(list)
    for status in statuses:
        place = place_of(status.source)
        if place.rank == 0 and status.weights:
            noted[place.replica or 0] += status.weights
    return {
        replica: sorted(updates, key=lambda update: update.time_s)
        for replica, updates in noted.items()
    }


def served_updates(
    noted: Mapping[int, list[WeightUpdate]], times: Mapping[int, Matrix]
) -> dict[int, list[Update]]:
    """Return the updates of each replica that has rounds at the sorted `times`.

    What is noted without a round in between is one update: trainers send weights in parts, and the
    worker that loads them and the engine core that names them are two processes. Weights that are
    loaded before the first round are those that the run started with.
    """
    out: dict[int, list[Update]] = {}
    for replica, updates in noted.items():
        rounds = np.searchsorted(times.get(replica, np.array([])), [u.time_s for u in updates])
        parts = groupby(zip(rounds.tolist(), updates, strict=True), key=lambda part: part[0])
        separate = [[update for _, update in part] for before, part in parts if before]
        out[replica] = [_merged_update(number, part) for number, part in enumerate(separate, 1)]
    return out


def _merged_update(number: int, parts: list[WeightUpdate]) -> Update:
    names = [part.version for part in parts if part.version]
    return Update(
        number=number,
        time_s=parts[-1].time_s,
        models=tuple(sorted({part.model for part in parts})),
        version=names[-1] if names else None,
    )
