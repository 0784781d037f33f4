"""Residuals of requests from the mean of their kind, so that a changed mix of kinds is no change.

The kind of a request is given by several factors, such as its label and its context length. Its
expected length is found in two steps. A weighted least-squares fit takes out the effect of each
factor while the others are held equal (an analysis of variance of unbalanced data: Yates 1934,
https://doi.org/10.2307/2278126). Then the mean of each cell, a combination of factors, is taken
out of what is left; a cell of few clusters is pooled upwards: the last factor is dropped, then the
one before. So every factor counts, however few requests share all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes, Matrix, ranked

LEAST_CLUSTERS = 10
"""Smallest number of clusters of a level of a factor, and of a cell: with fewer, its mean follows
its own requests so closely that little is left of a change among them."""
OTHER = "(other)"
"""Level of a factor that stands for all levels of few clusters."""


def residuals(
    tokens: Matrix, rounds: Matrix, cluster: Codes, factors: Sequence[NDArray[np.str_]]
) -> Matrix:
    """Return the tokens of each request minus what its kind yields in as many rounds, [requests].

    `factors`, [requests] each, begin with the one that is dropped last.
    """
    levels = [_levels(each) for each in factors]
    left = tokens - rounds * _by_factor(tokens, rounds, cluster, levels)
    return np.asarray(left - rounds * _means(left, rounds, _cells(cluster, levels)))


_Levels = tuple[NDArray[np.str_], Codes]
"""Different levels of a factor, sorted, and the number of each request's level, [requests]."""


def _levels(factor: NDArray[np.str_]) -> _Levels:
    names, code = np.unique(factor, return_inverse=True)
    return names, code.astype(np.int64)


def _by_factor(
    tokens: Matrix, rounds: Matrix, cluster: Codes, factors: Sequence[_Levels]
) -> Matrix:
    """Return the length of each request by the sum of the factors' effects, [requests]."""
    codes = [_merged(each, cluster) for each in factors]
    codes = [each for each in codes if each.max(initial=0) > 0]
    starts = np.cumsum([1, *(int(each.max()) + 1 for each in codes)])
    columns = [np.zeros(len(tokens), dtype=np.int64)]
    columns += [each + start for each, start in zip(codes, starts, strict=False)]
    size = int(starts[-1])
    normal, right = np.zeros(size * size), np.zeros(size)
    for one in columns:
        right += np.bincount(one, tokens, size)
        for other in columns:
            normal += np.bincount(one * size + other, rounds, size * size)
    effects = np.linalg.lstsq(normal.reshape(size, size), right, rcond=None)[0]
    return np.asarray(sum(effects[each] for each in columns))


def _merged(factor: _Levels, cluster: Codes) -> Codes:
    """Return the number of each request's level, [requests], with levels of few clusters as one."""
    names, code = factor
    few = _clusters_in(code, cluster) < LEAST_CLUSTERS
    return _levels(np.where(few, OTHER, names))[1][code]


def _means(tokens: Matrix, rounds: Matrix, cell: Codes) -> Matrix:
    """Return the tokens per round of each request's cell, [requests]."""
    kinds = int(cell.max(initial=-1)) + 1
    total, of = np.bincount(cell, tokens, kinds), np.bincount(cell, rounds, kinds)
    return np.asarray((total / np.where(of > 0, of, 1.0))[cell])


def cells(cluster: Codes, factors: Sequence[NDArray[np.str_]]) -> Codes:
    """Return the cell of each request, [requests]: the finest combination of leading factors that
    has LEAST_CLUSTERS clusters among the requests that no finer one has taken."""
    return _cells(cluster, [_levels(each) for each in factors])


def _cells(cluster: Codes, factors: Sequence[_Levels]) -> Codes:
    out = np.full(len(cluster), -1, dtype=np.int64)
    taken = 0
    for used in range(len(factors), 0, -1):
        left = np.flatnonzero(out < 0)
        code = _codes([code[left] for _, code in factors[:used]], len(left))
        large = _clusters_in(code, cluster[left]) >= LEAST_CLUSTERS
        mine = large[code]
        out[left[mine]] = taken + code[mine]
        taken += len(large)
    out[out < 0] = taken
    return ranked(out)[1]


def _codes(factors: Sequence[Codes], n: int) -> Codes:
    """Return a number for each combination of levels, [n]."""
    code = np.zeros(n, dtype=np.int64)
    for each in factors:
        there, own = ranked(each)
        code = ranked(code * max(len(there), 1) + own)[1]
    return code


def _clusters_in(code: Codes, cluster: Codes) -> Codes:
    """Return the number of different clusters of each code, [codes]."""
    clusters = int(cluster.max(initial=0)) + 1
    of = np.unique(code * clusters + cluster) // clusters
    return np.bincount(of, minlength=int(code.max(initial=-1)) + 1)
