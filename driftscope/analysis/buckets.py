"""Ways to cut a run: which bucket a row is in, as SQL, and how the buckets are called."""

from __future__ import annotations

from driftscope.analysis.filters import span_s
from driftscope.errors import UsageError

RANK = "rank"
"""By tensor-parallel rank: the same rounds, with what each rank saw of their chains."""
_POWER = "lpad(cast(cast(floor(log2(greatest({}, 1))) AS int) AS varchar(9)), 2, '0')"
_WINDOW = "lpad(cast(cast(floor((time_s - {begin}) / {each}) AS int) AS varchar(9)), 6, '0')"
BY_K = "k"
"""By the number of tokens that a round drafted, or that a recorded chain has."""
BY = {
    "label": "coalesce(label, '(unlabelled)')",
    "context": _POWER.format("context"),
    "prompt": _POWER.format("prompt_tokens"),
    "batch": "lpad(cast(batch AS varchar(9)), 4, '0')",
    "temperature": "cast(temperature AS varchar(20))",
    "structured": "coalesce(structured, '(not said)')",
    "finish": "finish_reason",
    "execution": "coalesce(execution, '(not recorded)')",
    "runner": "runner",
    "mode": "mode",
    BY_K: "lpad(cast(k AS varchar(4)), 4, '0')",
    RANK: "",
    "replica": "cast(replica AS varchar(9))",
    "hour": _WINDOW,
}
"""Ways to cut a run, and the bucket of a row in each, as text that sorts."""
WINDOWS = "or a span of time such as 10m"
_HOUR_S = 3600.0


def bucket_of(by: str, begin_s: float) -> str:
    """The SQL of a row's bucket; raises UsageError for a way to cut that there is not."""
    span = span_s(by)
    if by not in BY and not span:
        raise UsageError(f"--by {by!r}: not one of {', '.join(BY)}, {WINDOWS}")
    sql = _WINDOW if span else BY[by]
    return sql.format(begin=repr(begin_s), each=repr(span or _HOUR_S))


def name_of(by: str, bucket: str) -> str:
    """How a segment is called."""
    if by in ("context", "prompt"):
        return f"{2 ** int(bucket):,} to {2 ** (int(bucket) + 1) - 1:,} tokens"
    if by == "batch":
        return f"batch {int(bucket)}"
    if by == BY_K:
        return f"K = {int(bucket)}"
    if by == "hour":
        return f"hour {int(bucket) + 1}"
    if span_s(by):
        amount, unit = float(by.strip()[:-1]), by.strip()[-1]
        return f"{int(bucket) * amount:g} to {(int(bucket) + 1) * amount:g} {unit}"
    return bucket
