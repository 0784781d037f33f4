"""The requests of a run, coded as small integers so that tables join without strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.columns import Codes, floats
from driftscope.trace.reader import Trace

UNLABELLED = "(unlabelled)"
UNFINISHED = "(not finished)"
"""Label of requests that the run has steps of, and no request row: it broke off before their
end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Every request that any table of the run mentions."""

    ids: pa.Array
    """Replica and request: replicas that know nothing of each other name requests alike."""
    labels: NDArray[np.object_]
    """[requests] workload label of each."""
    ttft_s: NDArray[np.float64]
    """[requests], NaN where not known."""
    tpot_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    def codes(self, table: pa.Table) -> Codes:
        """[rows] which request each row of `table` belongs to."""
        return _codes(table, self.ids)


def requests_of(trace: Trace) -> Requests:
    """The requests of `trace`, in order of first mention (finished, verified, drafted)."""
    columns = [_names(table) for table in (trace.request, trace.verify, trace.draft)]
    ids = pc.unique(pa.chunked_array([c for column in columns for c in column.chunks], pa.string()))
    finished = _codes(trace.request, ids)
    labels = np.full(len(ids), UNFINISHED, dtype=np.object_)
    labels[finished] = pc.fill_null(trace.request.column("label"), UNLABELLED).to_pylist()
    durations = {}
    for name in ("ttft_s", "tpot_s"):
        durations[name] = np.full(len(ids), np.nan)
        durations[name][finished] = floats(trace.request, name)
    return Requests(ids=ids, labels=labels, **durations)


def _codes(table: pa.Table, ids: pa.Array) -> Codes:
    found = pc.index_in(_names(table), value_set=ids)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _names(table: pa.Table) -> pa.ChunkedArray:
    replica = table.column("replica").cast(pa.string())
    return pc.binary_join_element_wise(replica, table.column("request"), "/")
