"""Some of a run's rows: a condition in SQL over rows and what is known of their requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from driftscope.errors import UsageError

OF_ROWS = ("time_s", "position", "context", "batch", "replica", "request")
OF_REQUESTS = ("label", "prompt_tokens", "output_tokens", "temperature", "finish_reason")
COLUMNS = (*OF_ROWS, *OF_REQUESTS)
"""What a condition may name. `context` is the length of the context in tokens, `batch` the requests
in the step; columns of requests are null for one that has not finished."""

BY = {
    "label": "coalesce(label, '(unlabelled)')",
    "context": "lpad(cast(cast(floor(log2(greatest(context, 1))) AS int) AS varchar(9)), 2, '0')",
    "prompt": "lpad(cast(cast(floor(log2(greatest(prompt_tokens, 1))) AS int) AS varchar(9)), 2,"
    " '0')",
    "batch": "lpad(cast(batch AS varchar(9)), 4, '0')",
    "temperature": "cast(temperature AS varchar(20))",
    "finish": "finish_reason",
    "replica": "cast(replica AS varchar(9))",
    "hour": "lpad(cast(cast(floor((time_s - {begin}) / 3600) AS int) AS varchar(9)), 4, '0')",
}
"""Ways to cut a run, and the bucket of a row in each, as text that sorts."""
_POWERS = ("context", "prompt")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Rows to keep; all of them by default."""

    where: str | None = None
    """SQL over COLUMNS."""
    since: str | None = None
    """A span such as "2h", counted back from the last round, or a time in ISO 8601."""

    def conditions(self, last_s: float) -> tuple[str, ...]:
        """As SQL; `last_s` is the time of the last round. Raises UsageError."""
        since = () if self.since is None else (f"time_s >= {since_s(self.since, last_s)!r}",)
        return (*((f"({self.where})",) if self.where else ()), *since)


def since_s(text: str, last_s: float) -> float:
    """Unix time that a --since means; raises UsageError."""
    if found := _SPAN.fullmatch(text.strip()):
        return last_s - float(found[1]) * _SECONDS[found[2]]
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: neither a span such as 30m, 2h or 1d nor a time in ISO 8601"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def bucket_of(by: str, begin_s: float) -> str:
    """The SQL of a row's bucket; raises UsageError for a way to cut that there is not."""
    if by not in BY:
        raise UsageError(f"--by {by!r}: not one of {', '.join(BY)}")
    return BY[by].format(begin=repr(begin_s))


def name_of(by: str, bucket: str) -> str:
    """How a segment is called."""
    if by in _POWERS:
        return f"{2 ** int(bucket):,} to {2 ** (int(bucket) + 1) - 1:,} tokens"
    if by == "batch":
        return f"batch {int(bucket)}"
    return f"{by} {int(bucket) + 1}" if by == "hour" else bucket


def wide(source: str, columns: Sequence[str]) -> str:
    """SQL: the rows of `source`, which has `columns`, with all of COLUMNS."""
    known = ", ".join(f"r.{name}" for name in OF_REQUESTS if name not in columns)
    batch = (
        "" if "batch" in columns else ", count(*) OVER (PARTITION BY t.replica, t.step) AS batch"
    )
    return (
        f"SELECT t.*, t.position + 1 AS context{batch}, {known} FROM {source} t LEFT JOIN "
        f"(SELECT replica, request, {_ANY} FROM request_all GROUP BY replica, request) r "
        "ON t.replica = r.replica AND t.request = r.request"
    )


_BATCH = "count(*) OVER (PARTITION BY t.replica, t.step)"
_ANY = ", ".join(f"max({name}) AS {name}" for name in OF_REQUESTS)
