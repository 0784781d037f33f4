"""The bins of `DraftRow.distance_mass`: attention by the distance of a slot from the query.

The distance of a slot is the query's own slot minus the slot, so that the own slot has distance 0.
A chain of K tokens looks back on itself over at most K - 1 slots: these distances have a bin each.
The bins after them double in width, and everything farther away shares the last one:

    0, 1, ..., K-1, [K, 2K-1], [2K, 4K-1], [4K, 8K-1], [8K, ...)

Slots of the sink set and the learned bias have classes of their own and are in no bin: at each
depth and in each layer the bins, `sink_mass` and `null_mass` sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.trace.format.arrow_arrays import lengths_of, numbers_of, validity_of
from driftscope.vocabulary import DISTANCE_MASS, NULL_MASS, SINK_MASS

DOUBLINGS = 3
"""Number of bins between the single distances and the last bin, each twice as wide as the one
before. The value is driftscope's own: over 8K slots, text that a chain of K tokens repeats is near,
and the kernels sort only these slots by distance."""
SUM_WITHIN = 1e-3
"""Largest deviation from 1 of a depth's bins, sink and null. Sealing rounds each number by at most
2^-17 of its value, and measured masses deviate by less than 1e-4 (docs/accuracy.md)."""
_READ = ["k", "layers", DISTANCE_MASS, SINK_MASS, NULL_MASS]


def edges_of(k: int) -> tuple[int, ...]:
    """Return the first distance of each bin for chains of at most `k` tokens, from 1."""
    return (*range(k), *(k << n for n in range(DOUBLINGS + 1)))


def longest_of(bins: int) -> int:
    """Return the chain length that `bins` bins are made for."""
    return bins - DOUBLINGS - 1


def reach_of(bins: int) -> int:
    """Return the distance at which the last of `bins` bins begins."""
    return longest_of(bins) << DOUBLINGS


def edge_faults(edges: tuple[int, ...], every: int) -> str | None:
    """Return in words what is wrong with a manifest's `distance_edges` and `distance_every`."""
    if bool(edges) != bool(every):
        return f"distance_every is {every}, with {len(edges)} distance_edges"
    if edges and edges != edges_of(longest_of(len(edges))):
        return f"distance_edges is {list(edges)!r:.40}, not the first distances of bins"
    return None


def distance_faults(rows: pa.Table, bins: int | None = None) -> Iterator[str]:
    """Yield in words what is wrong with the masses by distance in draft `rows`.

    `bins`: number of bins, if it is known from the run's manifest.
    """
    there = rows.filter(rows.column(DISTANCE_MASS).is_valid()).select(_READ)
    if not there.num_rows:
        return
    queries = numbers_of(_whole(there, "k")) * numbers_of(_whole(there, "layers"))
    lengths = lengths_of(_whole(there, DISTANCE_MASS))
    if bins is None:
        bins = int(lengths[0] // max(queries[0], 1))
    if bins <= DOUBLINGS + 1 or not np.array_equal(lengths, queries * bins):
        yield f"{DISTANCE_MASS} is not K times layers times {bins} bins long in some rows"
        return
    by_bin = numbers_of(_whole(there, DISTANCE_MASS).flatten()).reshape(-1, bins)
    unknown = np.isnan(by_bin)
    if (unknown.any(1) != unknown.all(1)).any():
        yield f"{DISTANCE_MASS} is not a number in some bins of a depth, but in others it is"
    if (by_bin < 0.0).any() or (by_bin > 1.0 + SUM_WITHIN).any():
        yield f"{DISTANCE_MASS} is not a share in some rows"
    others = [_elements(_whole(there, name), queries) for name in (SINK_MASS, NULL_MASS)]
    if any(other is None for other in others):
        yield f"{DISTANCE_MASS} is there, and {SINK_MASS} or {NULL_MASS} has another length"
        return
    total = by_bin.sum(1, dtype=np.float64) + sum(np.nan_to_num(x) for x in others if x is not None)
    off = np.abs(total[~unknown.any(1)] - 1.0)
    if (off > SUM_WITHIN).any():
        yield (
            f"{DISTANCE_MASS}, {SINK_MASS} and {NULL_MASS} sum to a number other than 1 at "
            f"{int((off > SUM_WITHIN).sum())} depths, by up to {off.max():.2g}"
        )


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()


def _elements(lists: pa.ListArray, queries: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Return the elements of all rows, 0 where a row has no list; None if a list has another number
    of elements than the row has `queries`."""
    there = validity_of(lists)
    there = np.ones(len(lists), dtype=np.bool_) if there is None else there
    if not np.array_equal(lengths_of(lists)[there], queries[there]):
        return None
    out = np.zeros(int(queries.sum()))
    out[np.repeat(there, queries)] = numbers_of(lists.flatten())
    return out
