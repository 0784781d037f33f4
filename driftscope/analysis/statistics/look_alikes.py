"""Requests that look like repetitions of one prompt, in recordings that do not say which are.

At temperature 0 a repeated prompt gets the same answer and mostly the same drafts, so the first
rounds of its requests agree. Other requests may agree by chance, most of all if nearly everything
is accepted. How many do by chance is found by exchanging the first rounds of requests of one label
at random: what is left of agreement does not depend on the prompt.
"""

from __future__ import annotations

import numpy as np

from driftscope.analysis.query.column_arrays import Codes

FEWEST_ALIKE = 0.05
"""Smallest share of the requests that look like repetitions for them to count as such."""
EXCHANGES = 99
"""Number of random exchanges: agreement has to exceed that of all of them but one in twenty."""
MOST_BY_CHANCE = 0.05
SEED = 20_261_124


def look_alikes(label: Codes, length: Codes, beginning: Codes) -> Codes | None:
    """Return a number for each request, [requests], equal for those that look like repetitions of
    one prompt; None if too few do, or no more than by chance.

    `label`, `length` of the prompt and `beginning` (first rounds) are numbers; a negative beginning
    is not known and agrees with none.
    """
    known = beginning >= 0
    group = _codes(label, length, beginning)
    share = _share(group[known], len(label))
    if share < FEWEST_ALIKE:
        return None
    random = np.random.default_rng(SEED)
    by_chance = sum(
        _share(_codes(label, length, _exchanged(beginning, label, random))[known], len(label))
        >= share
        for _ in range(EXCHANGES)
    )
    if (1 + by_chance) / (EXCHANGES + 1) > MOST_BY_CHANCE:
        return None
    own = int(group.max()) + 1 + np.arange(len(group))
    return np.unique(np.where(known, group, own), return_inverse=True)[1]


def _codes(*parts: Codes) -> Codes:
    return np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _share(group: Codes, requests: int) -> float:
    """Return the share of `requests` that have a group with another one."""
    size = np.bincount(group) if len(group) else np.zeros(0, dtype=np.int64)
    return float(size[size > 1].sum() / max(requests, 1))


def _exchanged(beginning: Codes, label: Codes, random: np.random.Generator) -> Codes:
    """Return the beginnings of requests of one label in random order; unknown ones stay."""
    out = beginning.copy()
    for each in np.unique(label):
        mine = np.flatnonzero((label == each) & (beginning >= 0))
        out[mine] = beginning[random.permutation(mine)]
    return out
