"""Combines the processes that record one run when the run is read.

A file's name says which process wrote it. `worker<r>-<pid>` is tensor-parallel rank r,
`worker<r>.dp<n>-<pid>` is rank r of data-parallel replica n, and `engine<n>-<pid>` is the engine
core of replica n; any other source counts as rank 0 of replica 0. `.2` after a pid marks the second
process of that name, such as one of another container.

The ranks of a replica run the same steps. Each records its own attention heads. The first rank
records what does not depend on heads (norms, confidence, token ids). The others write None, but
for the state fed forward: the ranks hold the same one, unless the drafter lacks a sum over ranks.
Replicas share nothing: each numbers its steps from 1, and offline also its requests, so rows carry
the replica.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from driftscope.boundary.bounds import MAX_RANKS
from driftscope.vocabulary import DISTANCE_MASS, MASSES

_SLOWEST = ("probe_s", "gpu_draft_s", "gpu_probe_s")
"""Columns of a step that take the largest value of all ranks: the slowest delays the others."""
_KEYS = {"draft": ("replica", "step", "request", "position"), "step": ("replica", "step")}
_SOURCE = re.compile(
    r"(?P<role>worker|engine)(?P<number>[0-9]{1,18})(?:\.dp(?P<replica>[0-9]{1,18}))?-[0-9]+(?:\.[0-9]+)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process's place among the processes of a run."""

    rank: int = 0
    replica: int | None = None
    """Data-parallel replica; None if the name of the source does not contain it."""


def place_of(source: str) -> Place:
    """Return the place of the process whose source is named `source`."""
    parts = _SOURCE.fullmatch(source)
    if parts is None:
        return Place()
    number, replica = int(parts["number"]), int(parts["replica"] or 0)
    if max(number, replica) > MAX_RANKS:  # no process has such a name
        return Place()
    if parts["role"] == "engine":
        return Place(replica=number)
    return Place(rank=number, replica=None if parts["replica"] is None else replica)


def with_replica(table: pa.Table, place: Place) -> pa.Table:
    """Return `table` with the replica from the source's name, or unchanged if the name has none."""
    if place.replica is None or "replica" not in table.column_names:
        return table
    at = table.schema.get_field_index("replica")
    column = pa.repeat(pa.scalar(place.replica, pa.int64()), table.num_rows)
    return table.set_column(at, table.field(at), column)


def joined(record: str, by_rank: Mapping[int, pa.Table], problems: list[str]) -> pa.Table:
    """Return one table with the rows of every tensor-parallel rank.

    Chains that not all ranks of their replica recorded are left out, and `problems` states how
    many: a mean over some of the heads is another quantity. A step's values come from the first
    rank that has the step.
    """
    tables = [by_rank[rank] for rank in sorted(by_rank)]
    if record not in _KEYS or sum(table.num_rows > 0 for table in tables) < 2:
        return pa.concat_tables(tables)
    whole = pa.concat_tables(tables)
    rank = np.repeat(sorted(by_rank), [table.num_rows for table in tables])
    groups = _groups(whole, rank, _KEYS[record])
    if record == "step":
        return _merged(whole, groups, dict.fromkeys(_SLOWEST, _slowest))
    # The groups with a row of every rank that recorded anything in their replica.
    replica = whole.column("replica").to_pylist()
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    for of_replica, of_rank in zip(replica, rank.tolist(), strict=True):
        ranks[of_replica].add(of_rank)
    complete = [rows for rows in groups if len(rows) == len(ranks[replica[rows[0]]])]
    if left_out := len(groups) - len(complete):
        problems.append(
            f"{left_out} chains were recorded by only some of the tensor-parallel ranks and are "
            "left out"
        )
    return _merged(
        whole,
        complete,
        {
            **dict.fromkeys(MASSES, _mean),
            DISTANCE_MASS: _mean_of_all,
            "heads": _total_heads,
        },
    )


Rows = list[int]
"""Row indices of one chain or step, the first rank's first."""


def _groups(table: pa.Table, rank: Any, keys: tuple[str, ...]) -> list[Rows]:
    """Return the rows that belong together, in order of first occurrence.

    If a rank has several rows of one key (a restarted process), they are matched in order.
    """
    groups: defaultdict[tuple[Any, ...], Rows] = defaultdict(list)
    counts: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    columns = [table.column(name).to_pylist() for name in keys]
    for row, (of_rank, *key) in enumerate(zip(rank.tolist(), *columns, strict=True)):
        again = counts[of_rank, *key]
        counts[of_rank, *key] += 1
        groups[*key, again].append(row)
    return list(groups.values())


def _merged(table: pa.Table, groups: list[Rows], merge: Mapping[str, Any]) -> pa.Table:
    """Return one row per group: columns in `merge` by its functions, others from the first rank."""
    first = table.take(pa.array([rows[0] for rows in groups], pa.int64()))
    merged = {name: combine(table, name, groups) for name, combine in merge.items()}
    columns = [merged.get(f.name, _first_known(table, first, f.name, groups)) for f in table.schema]
    return pa.table(columns, schema=table.schema)


def _first_known(table: pa.Table, first: pa.Table, name: str, groups: list[Rows]) -> pa.Array:
    """Return the value of the first rank that has one; most columns have no nulls at all."""
    column = first.column(name)
    if not column.null_count or table.column(name).null_count == table.num_rows:
        return column
    known = table.column(name).is_valid().to_pylist()
    at = [next((row for row in rows if known[row]), rows[0]) for rows in groups]
    return table.column(name).take(pa.array(at, pa.int64()))


def _slowest(table: pa.Table, name: str, groups: list[Rows]) -> pa.Array:
    values = table.column(name).to_pylist()
    known = [[values[row] for row in rows if values[row] is not None] for rows in groups]
    return pa.array(
        [max(of_ranks, default=None) for of_ranks in known], table.schema.field(name).type
    )


def _total_heads(table: pa.Table, name: str, groups: list[Rows]) -> pa.Array:
    heads = table.column(name).to_pylist()
    return pa.array([sum(heads[row] for row in rows) for rows in groups], pa.int64())


def _mean(table: pa.Table, name: str, groups: list[Rows]) -> pa.Array:
    """Return the mean weighted by heads; ranks to which a class does not apply are left out."""
    lists, heads = table.column(name).to_pylist(), table.column("heads").to_pylist()
    kind = table.schema.field(name).type
    if table.column(name).null_count == table.num_rows:
        return pa.nulls(len(groups), kind)
    return pa.array([_mean_of(lists, heads, rows) for rows in groups], kind)


def _mean_of_all(table: pa.Table, name: str, groups: list[Rows]) -> pa.Array:
    """Return the mean weighted by heads; None unless every rank has the list: with fewer heads it
    would not add up with the other masses, which are means over all of them."""
    is_valid = table.column(name).is_valid().to_pylist()
    whole = [rows if all(is_valid[row] for row in rows) else [] for rows in groups]
    return _mean(table, name, whole)


def _mean_of(lists: list[Any], heads: list[int], rows: Rows) -> Any:
    with_list = [row for row in rows if lists[row] is not None]
    if not with_list:
        return None
    values = np.array([lists[row] for row in with_list])
    weight = np.array([max(heads[row], 1) for row in with_list], dtype=np.float64)[:, None]
    counted = np.where(np.isnan(values), 0.0, weight)
    total = (np.nan_to_num(values, posinf=np.inf, neginf=-np.inf) * counted).sum(axis=0)
    share = counted.sum(axis=0)
    return np.where(share > 0, total / np.where(share > 0, share, 1.0), np.nan)
