"""Filters of a run's rows: conditions on rows and on what is known of their requests and run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from driftscope.analysis.conditions.columns import OF_REGIONS, OF_REQUESTS, OF_RUNS, Names
from driftscope.analysis.conditions.condition import Condition, condition_of
from driftscope.analysis.query.query_engine import Dialect
from driftscope.analysis.query.region_columns import LISTS, region_column
from driftscope.errors import UsageError
from driftscope.trace.format.manifest import Manifest


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
        more.append("t.drafted AS k")
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
    manifest: Manifest, executions: Sequence[str], dialect: Dialect
) -> dict[str, str | None]:
    """Return the argument `constants` of `wide`, for a run whose steps had these executions."""
    alike = set(executions)
    return {
        "runner": dialect.text(manifest.runner),
        "mode": dialect.text(manifest.mode),
        "execution": dialect.text(alike.pop()) if len(alike) == 1 else None,
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
