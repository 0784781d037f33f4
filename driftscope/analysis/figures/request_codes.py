"""Requests of a run, coded as small integers so that tables join without strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.passes.requests import requests_that_finished
from driftscope.analysis.query.column_arrays import Codes, Matrix, floats
from driftscope.analysis.query.record_views import Tables

UNLABELLED = "(unlabelled)"
UNFINISHED = "(not finished)"
"""Label of requests with steps in the run but without a request row: the run broke off before their
end."""
MAX_CLUSTERS = 8192
"""Number of requests above which they are grouped at random for what is measured in chains:
intervals over so many groups are as wide as over requests, and memory is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Every request that any table of the run mentions, arrays of [requests] each, in order of
    replica and name."""

    keys: pa.Table
    """Replica and name of each request."""
    labels: NDArray[np.object_]
    """Workload label of each request."""
    ttft_s: Matrix
    """Time to first token in seconds; in this field and the next five, NaN stands for an unknown
    number."""
    tpot_s: Matrix
    arrival_s: Matrix
    prompt_tokens: Matrix
    output_tokens: Matrix
    temperature: Matrix
    finish_reason: NDArray[np.object_]
    """Reason why each request ended; "" if it is not known."""
    replica: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def codes(self, table: pa.Table) -> Codes:
        """Return the request that each row of `table`, which has replica and request columns,
        belongs to, [rows]."""
        found = pc.index_in(_names(table), value_set=_names(self.keys).combine_chunks())
        return np.asarray(found.to_numpy(), dtype=np.int64)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each request has a request row, [requests]."""
        return np.asarray(self.labels != UNFINISHED)


def requests_of(tables: Tables, *mentions: pa.Table) -> Requests:
    """Return the requests of a run, including those that only other tables mention."""
    finished = tables.engine.rows(requests_that_finished())
    keys = _distinct([finished, *mentions])
    at = _index(finished, keys)
    labels = np.full(keys.num_rows, UNFINISHED, dtype=np.object_)
    labels[at] = pc.fill_null(finished.column("label"), UNLABELLED).to_pylist()
    reason = np.full(keys.num_rows, "", dtype=np.object_)
    reason[at] = pc.fill_null(finished.column("finish_reason"), "").to_pylist()
    numbers = {}
    for name in _NUMBERS:
        numbers[name] = np.full(keys.num_rows, np.nan)
        numbers[name][at] = floats(finished, name)
    return Requests(
        keys=keys,
        labels=labels,
        finish_reason=reason,
        replica=np.asarray(keys.column("replica").to_numpy(), dtype=np.int64),
        **numbers,
    )


_NUMBERS = ("ttft_s", "tpot_s", "arrival_s", "prompt_tokens", "output_tokens", "temperature")


def clusters_of(strata: Codes) -> Codes:
    """Return the cluster of each request, [requests]; all requests of a cluster are of one
    stratum."""
    if len(strata) <= MAX_CLUSTERS:
        return np.arange(len(strata))
    kinds = int(strata.max()) + 1
    each = max(MAX_CLUSTERS // kinds, 1)
    order = np.argsort(strata, kind="stable")
    place = np.empty_like(order)
    starts = np.searchsorted(strata[order], np.arange(kinds))
    place[order] = np.arange(len(strata)) - starts[strata[order]]
    return np.asarray(strata * each + place % each)


def evenly(requests: Codes, rows: NDArray[np.int64], most: int) -> Codes:
    """Return every n-th of `requests`, so that they have about `most` of all `rows`; all of them if
    they have no more than that."""
    every = max(1, -(-int(rows.sum()) // most))
    return requests[::every]


def _distinct(tables: list[pa.Table]) -> pa.Table:
    both = pa.concat_tables(
        [
            pa.table(
                {
                    "replica": table.column("replica").cast(pa.int64()),
                    "request": table.column("request").cast(pa.string()),
                }
            )
            for table in tables
        ]
    )
    distinct = both.group_by(["replica", "request"]).aggregate([])
    return distinct.sort_by([("replica", "ascending"), ("request", "ascending")])


def _index(table: pa.Table, keys: pa.Table) -> Codes:
    found = pc.index_in(_names(table), value_set=_names(keys).combine_chunks())
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _names(table: pa.Table) -> pa.ChunkedArray:
    replica = table.column("replica").cast(pa.string())
    return pc.binary_join_element_wise(replica, table.column("request").cast(pa.string()), "/")
