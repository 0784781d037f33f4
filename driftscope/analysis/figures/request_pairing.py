"""Pairing of requests of two runs that asked the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.query.column_arrays import Codes

ENOUGH_PAIRED = 0.9
"""Share of both runs' requests that must have a partner: with fewer, the runs did not answer the
same prompts, and the prompts in common are no sample of either."""
BY_ID = "request id, label and prompt length"
BY_DIGEST = "prompt digest, label and order of arrival"
BY_ORDER = "label, prompt length and order of arrival"
UNPAIRED = "unpaired"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """Paired requests of a first and a second run."""

    how: str
    """Way of pairing: BY_ID, BY_DIGEST, BY_ORDER or UNPAIRED."""
    first: Codes
    """Requests of the first run that have a partner, [pairs]; empty if unpaired."""
    second: Codes
    alone: int
    """Number of requests of either run, with a round, that have no partner."""


def pair(first: Requests, second: Requests, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> Pairing:
    """Pair the requests that `a` and `b` select.

    Wrongly paired requests, whose prompts only look the same, cost power but do not mislead: the
    comparison is of sums over the same pairs on both sides.
    """
    keys = {
        how: (_keyed(of(first), a), _keyed(of(second), b))
        for how, of in ((BY_ID, keys_by_id), (BY_DIGEST, keys_by_digest), (BY_ORDER, keys_by_order))
    }
    return pair_keys(keys) or unpaired(int(a.sum() + b.sum()))


def pair_keys(
    keys: Mapping[str, tuple[Mapping[Hashable, int], Mapping[Hashable, int]]],
) -> Pairing | None:
    """Pair rows by the first kind of key that enough rows of both runs share; None if there is no
    such kind. `keys` maps the name of a kind to the row of each key in the first and in the second
    run."""
    for how, (mine, theirs) in keys.items():
        shared = sorted(mine.keys() & theirs.keys(), key=lambda each: mine[each])
        if shared and len(shared) >= ENOUGH_PAIRED * max(len(mine), len(theirs)):
            return Pairing(
                how=how,
                first=np.array([mine[each] for each in shared]),
                second=np.array([theirs[each] for each in shared]),
                alone=len(mine) + len(theirs) - 2 * len(shared),
            )
    return None


def unpaired(alone: int) -> Pairing:
    """Return an empty pairing; `alone` requests have no partner."""
    none = np.empty(0, dtype=np.int64)
    return Pairing(how=UNPAIRED, first=none, second=none, alone=alone)


Key = tuple[Any, ...]


def _keyed(keys: list[Key], wanted: NDArray[np.bool_]) -> dict[Hashable, int]:
    """Return the request of each key; requests without a known prompt length have no key."""
    return {key: at for at, key in enumerate(keys) if wanted[at] and key}


def keys_by_id(requests: Requests) -> list[Key]:
    """Return replica, id, label and prompt length of each request, [requests]; () if the length is
    not known."""
    names, known = requests.keys.column("request").to_pylist(), np.isfinite(requests.prompt_tokens)
    columns = requests.replica.tolist(), names, requests.labels, requests.prompt_tokens.tolist()
    keys = zip(*columns, strict=True)
    return [key if there else () for key, there in zip(keys, known.tolist(), strict=True)]


def keys_by_digest(requests: Requests) -> list[Key]:
    """Return the prompt's digest, label and rank by arrival among requests equal in both,
    [requests]; () if there is no digest. Two runs agree in them if they have one salt."""
    known = [bool(digest) for digest in requests.digests]
    return _ranked(requests, list(zip(requests.digests, requests.labels, strict=True)), known)


def keys_by_order(requests: Requests) -> list[Key]:
    """Return label, prompt length and rank by arrival among requests equal in both, [requests]; ()
    if the length is not known."""
    known = np.isfinite(requests.prompt_tokens).tolist()
    kinds = zip(requests.labels, requests.prompt_tokens.tolist(), strict=True)
    return _ranked(requests, list(kinds), known)


def _ranked(requests: Requests, kinds: list[Key], known: list[bool]) -> list[Key]:
    """Return each request's kind and its rank by arrival among those of that kind, [requests]; ()
    for a kind that is not known."""
    keys: list[Key] = [()] * len(requests)
    seen: dict[Key, int] = {}
    for at in np.argsort(requests.arrival_s, kind="stable").tolist():
        if not known[at]:
            continue
        kind = kinds[at]
        seen[kind] = seen.get(kind, 0) + 1
        keys[at] = (*kind, seen[kind])
    return keys
