"""Ways to split a run: the bucket of a row as SQL, and the names of buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driftscope.analysis.conditions.columns import Names
from driftscope.analysis.query.row_filters import span_s
from driftscope.errors import UsageError

RANK = "rank"
"""Split by tensor-parallel rank: the same rounds, with each rank's recording of their chains."""
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
BY_K = "k"
"""Split by the number of tokens that a round drafted, or that a recorded chain has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Expression for the bucket of a row, as text that sorts."""

    sql: str
    """SQL that all engines understand; it contains no text from a user."""
    names: Names
    """Columns of `driftscope.analysis.conditions.columns` that the SQL uses."""


def _of(column: str, sql: str) -> Bucket:
    return Bucket(sql=sql.format(column), names=frozenset((column,)))


BY: Mapping[str, Bucket] = {
    "label": _of("label", "coalesce({}, '(unlabelled)')"),
    "context": _of("context", _POWER),
    "prompt": _of("prompt_tokens", _POWER),
    "batch": _of("batch", "lpad(cast({} AS varchar(9)), 4, '0')"),
    "temperature": _of("temperature", "cast({} AS varchar(20))"),
    "structured": _of("structured", "coalesce({}, '(not stated)')"),
    "finish": _of("finish_reason", "{}"),
    "execution": _of("execution", "coalesce({}, '(not recorded)')"),
    "runner": _of("runner", "{}"),
    "mode": _of("mode", "{}"),
    BY_K: _of("k", "lpad(cast({} AS varchar(4)), 4, '0')"),
    RANK: Bucket(sql="", names=frozenset()),
    "replica": _of("replica", "cast({} AS varchar(9))"),
    "region": _of("region", f"coalesce({{}}, '{_NOT_RECORDED}')"),
    "language": _of("language", f"coalesce({{}}, '{_NOT_RECORDED}')"),
    "boundary": Bucket(sql=_BOUNDARY, names=frozenset(("region", "boundary"))),
    "copied": _of(
        "copied", f"CASE {{}} WHEN 1 THEN 'copied' WHEN 0 THEN 'new' ELSE '{_NOT_RECORDED}' END"
    ),
}
"""Ways to split a run, apart from spans of time, each with the bucket of a row."""
TEXT = Bucket(
    sql=f"region || '{TEXT_SEPARATOR}' || CASE WHEN boundary < {NEAR_TOKENS} THEN 'near' "
    f"ELSE 'far' END || '{TEXT_SEPARATOR}' || cast(copied AS varchar(1))",
    names=frozenset(("region", "boundary", "copied")),
)
"""Bucket of a round's kind of text, whether a block begins right before it, and whether it is
copied; null where regions were not recorded."""
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
    if by == "boundary":
        return _NEARNESS.get(bucket, bucket)
    if by == BY_HOUR:
        return f"hour {int(bucket) + 1}"
    if span_s(by):
        amount, unit = float(by.strip()[:-1]), by.strip()[-1]
        return f"{int(bucket) * amount:g} to {(int(bucket) + 1) * amount:g} {unit}"
    return bucket
