"""Whether the tensor-parallel ranks of a run hold the same state of the drafter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftscope.analysis.query.query_engine import floats
from driftscope.analysis.query.record_views import Tables, ranks_of
from driftscope.trace.reader import read_record
from driftscope.vocabulary import FED_RMS

_KEY = ("replica", "step", "request", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates:
    """The rank whose state differs most from that of rank 0."""

    rank: int
    chains: int
    """Chains that both ranks recorded."""
    difference: float
    """Mean over chains of the difference of the RMS of the state fed forward, averaged over depth,
    as a share of that on rank 0."""


def rank_states(tables: Tables) -> RankStates | None:
    """Return the rank that differs most; None with fewer than two ranks that recorded states."""
    ranks = ranks_of(tables.path)
    if len(ranks) < 2:
        return None
    first, *others = (_fed(tables, rank) for rank in ranks)
    compared = (
        _compared(rank, first, other) for rank, other in zip(ranks[1:], others, strict=True)
    )
    return max(filter(None, compared), key=lambda states: states.difference, default=None)


def _fed(tables: Tables, rank: int) -> pa.Table:
    """Return the mean over depth of the RMS fed forward, by chain."""
    rows = read_record(tables.path, "draft", tables.manifest, [], rank=rank)
    rows = rows.filter(pc.is_valid(rows.column(FED_RMS)))
    means = [float(np.mean(values)) for values in rows.column(FED_RMS).to_pylist()]
    return rows.select(_KEY).append_column("fed", pa.array(means, pa.float64()))


def _compared(rank: int, first: pa.Table, other: pa.Table) -> RankStates | None:
    both = first.join(other, list(_KEY), join_type="inner", right_suffix="_other")
    ours, theirs = floats(both, "fed"), floats(both, "fed_other")
    known = np.isfinite(ours) & np.isfinite(theirs) & (ours > 0)
    if not known.any():
        return None
    apart = np.abs(theirs[known] - ours[known]) / ours[known]
    return RankStates(rank=rank, chains=int(known.sum()), difference=float(apart.mean()))
