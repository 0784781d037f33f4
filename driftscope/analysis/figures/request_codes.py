"""Requests of a run, coded as small integers so that tables join without strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.figures.units import Units, units_of
from driftscope.analysis.passes.requests import requests_that_finished
from driftscope.analysis.query.column_arrays import Codes, Matrix, floats
from driftscope.analysis.query.record_views import Tables
from driftscope.analysis.statistics.clusters import spans_of
from driftscope.metrics.latency import life_s

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
    structured: NDArray[np.object_]
    """Kind of structured output that each request asked for; "" if it is not known."""
    replica: NDArray[np.int64]
    units: Units
    """Which requests count as independent of each other."""
    digests: NDArray[np.object_]
    """Digest of each request's prompt; "" if it is not known."""
    has_regions: bool = False
    """Whether regions of some request's answer were recorded."""

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def codes(self, table: pa.Table) -> Codes:
        """Return the request that each row of `table`, which has replica and request columns,
        belongs to, [rows]."""
        return index_of(table, self.keys)

    @property
    def spans(self) -> Codes | None:
        """Span of time in which each request arrived, [requests]; None if there are too few."""
        return spans_of(self.arrival_s, life_s(self.ttft_s, self.tpot_s, self.output_tokens))

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each request has a request row, [requests]."""
        return np.asarray(self.labels != UNFINISHED)


def requests_of(tables: Tables, *mentions: pa.Table) -> Requests:
    """Return the requests of a run, including those that only other tables mention."""
    finished = tables.engine.rows(requests_that_finished())
    keys = _distinct([finished, *mentions])
    at = index_of(finished, keys)
    labels = np.full(keys.num_rows, UNFINISHED, dtype=np.object_)
    labels[at] = pc.fill_null(finished.column("label"), UNLABELLED).to_pylist()
    texts = {}
    for name in ("finish_reason", "structured", "prompt_digest"):
        texts[name] = np.full(keys.num_rows, "", dtype=np.object_)
        texts[name][at] = pc.fill_null(finished.column(name), "").to_pylist()
    numbers = {}
    for name in _NUMBERS:
        numbers[name] = np.full(keys.num_rows, np.nan)
        numbers[name][at] = floats(finished, name)
    return Requests(
        keys=keys,
        labels=labels,
        units=units_of(finished, at, keys.num_rows, tables.cluster),
        digests=texts.pop("prompt_digest"),
        has_regions=pc.any(finished.column("has_regions")).as_py() is True,
        replica=np.asarray(keys.column("replica").to_numpy(), dtype=np.int64),
        **texts,
        **numbers,
    )


_NUMBERS = ("ttft_s", "tpot_s", "arrival_s", "prompt_tokens", "output_tokens", "temperature")


def cells_of(strata: Codes, unit: Codes) -> tuple[Codes, Codes]:
    """Return the cell of each request, for which chains are summed, and the cluster of each
    request, [requests] each: a cell's requests are of one stratum and one cluster.

    A cluster is a unit, or a group of units if there are more than MAX_CLUSTERS requests, so that
    requests of one unit are never in two clusters.
    """
    if len(strata) <= MAX_CLUSTERS:
        return np.arange(len(strata)), unit
    each = max(MAX_CLUSTERS // (int(strata.max()) + 1), 1)
    group = unit % each
    return np.asarray(strata * each + group), group


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


def index_of(table: pa.Table, keys: pa.Table, *, missing: int | None = None) -> Codes:
    """Return the row of `keys` with the request of each row of `table`, [rows]; `missing` where it
    has none. Both tables have replica and request columns."""
    positions = pc.index_in(_names(table), value_set=_names(keys).combine_chunks())
    known = positions if missing is None else pc.fill_null(positions, missing)
    return np.asarray(known.to_numpy(), dtype=np.int64)


def _names(table: pa.Table) -> pa.ChunkedArray:
    replica = table.column("replica").cast(pa.string())
    return pc.binary_join_element_wise(replica, table.column("request").cast(pa.string()), "/")
