"""Some of a run's rows: conditions in SQL over rows and what is known of their requests and run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from driftscope.errors import UsageError
from driftscope.trace.manifest import Manifest

OF_ROWS = ("time_s", "position", "context", "batch", "k", "replica", "request", "execution")
OF_REQUESTS = (
    "label", "prompt_tokens", "output_tokens", "temperature", "finish_reason", "structured",
)  # fmt: skip
OF_RUNS = ("runner", "mode")
COLUMNS = (*OF_ROWS, *OF_REQUESTS, *OF_RUNS)
"""What a condition may name. `context` is the length of the context in tokens, `batch` the requests
in the step, `k` the tokens that the round drafted or the chain has, `execution` how the drafter of
a recorded chain ran, or of all chains where all ran alike; columns of requests are null for one
that has not finished."""
OF_STEPS = ("time_s", "batch", "k", "replica", "execution", *OF_RUNS)
"""Those that a worker's step has, too; other conditions do not narrow steps."""

Names = frozenset[str]


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


_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_NAME = re.compile(r"[a-z_]+")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span_s(text: str) -> float | None:
    """Seconds of a span such as "30m"; None for anything else."""
    found = _SPAN.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None


def since_s(text: str, last_s: float) -> float:
    """Unix time that a --since means; raises UsageError."""
    if (span := span_s(text)) is not None:
        return last_s - span
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: neither a span such as 30m, 2h or 1d nor a time in ISO 8601"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def names_in(sql: Sequence[str]) -> Names:
    """Which of COLUMNS a text may name."""
    return frozenset(COLUMNS) & {name for text in sql for name in _NAME.findall(text.lower())}


def wide(source: str, columns: Sequence[str], names: Names, said: Mapping[str, str | None]) -> str:
    """SQL: the rows of `source`, which has `columns`, as `t` with all of `names` besides.

    `said` is the SQL of columns that are the same in all rows; None where rows differ.
    """
    missing = names - set(columns)
    more, joins = ["t.*"], []
    if "context" in missing:
        more.append("t.position + 1 AS context")
    if "batch" in missing:
        more.append("count(*) OVER (PARTITION BY t.replica, t.step) AS batch")
    if "k" in missing:
        more.append("t.drafted AS k")
    more += [f"{said[name]} AS {name}" for name in OF_RUNS if name in missing]
    if asked := [name for name in OF_REQUESTS if name in missing]:
        more += [f"r.{name}" for name in asked]
        joins.append(_with(_REQUESTS, "r", ("replica", "request")))
    if "execution" in missing and said["execution"] is not None:
        more.append(f"{said['execution']} AS execution")
    elif "execution" in missing:
        more.append("d.execution")
        joins.append(_with(_DRAWN, "d", ("replica", "request", "position")))
    return f"SELECT {', '.join(more)} FROM {source} t {' '.join(joins)}"


def said_of(manifest: Manifest, executions: Sequence[str]) -> dict[str, str | None]:
    """What `wide` is told of a run whose steps ran in these ways."""
    alike = set(executions)
    return {
        "runner": quoted(manifest.runner),
        "mode": quoted(manifest.mode),
        "execution": quoted(alike.pop()) if len(alike) == 1 else None,
    }


def quoted(text: str) -> str:
    """As a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


_REQUESTS = (
    f"SELECT replica, request, {', '.join(f'max({name}) AS {name}' for name in OF_REQUESTS)} "
    "FROM request_all GROUP BY replica, request"
)
_DRAWN = (
    "SELECT replica, request, position, max(execution) AS execution FROM draft_all "
    "GROUP BY replica, request, position"
)


def _with(rows: str, name: str, key: Sequence[str]) -> str:
    return f"LEFT JOIN ({rows}) {name} ON {' AND '.join(f't.{k} = {name}.{k}' for k in key)}"
