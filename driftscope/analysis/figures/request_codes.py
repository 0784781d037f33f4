"""The requests of a run, coded as small integers so that tables join without strings."""

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
"""Label of requests that the run has steps of, and no request row: it broke off before their
end."""
MAX_CLUSTERS = 8192
"""Requests beyond this many are put together at random for what is measured in chains: intervals
over so many groups are as wide as over requests, and memory is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Every request that any table of the run mentions, [requests] each, in order of replica and
    name."""

    keys: pa.Table
    """Replica and request."""
    labels: NDArray[np.object_]
    """Workload label of each."""
    ttft_s: Matrix
    """NaN where not known, as below."""
    tpot_s: Matrix
    arrival_s: Matrix
    prompt_tokens: Matrix
    output_tokens: Matrix
    temperature: Matrix
    finish_reason: NDArray[np.object_]
    """"" where not known."""
    replica: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def codes(self, table: pa.Table) -> Codes:
        """[rows] which request each row of `table`, with its replica and request, belongs to."""
        found = pc.index_in(_names(table), value_set=_names(self.keys).combine_chunks())
        return np.asarray(found.to_numpy(), dtype=np.int64)

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Those that have a request row."""
        return np.asarray(self.labels != UNFINISHED)


def requests_of(tables: Tables, *mentions: pa.Table) -> Requests:
    """The requests of a run, those that other tables mention included."""
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
    """[requests] the cluster of each; requests of one cluster are of one stratum."""
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
    """Every n-th of `requests`, so that they have about `most` of all `rows`; all, where they have
    no more."""
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
