"""Common ground of two runs: requests with the same prompt, and a mix of workload labels.

Prompts are the same if their digests say so. Digests of two runs agree where both were made with
one salt; if some agree, the others differ, and no other name pairs their requests. Without a common
digest, requests may be paired by id or by order of arrival, and their prompts are then assumed to
be the same: only if they agree in label and prompt length far better than unrelated requests would.
Requests that are all of one length agree in it whatever their prompts are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.query.query_engine import Codes
from driftscope.analysis.statistics.changes import LEAST_CLUSTERS, OTHER

ENOUGH_PAIRED = 0.9
"""Share of both runs' requests that must have a partner: with fewer, the runs did not answer the
same prompts, and the prompts in common are no sample of either."""
BY_DIGEST = "prompt digest, label and order of arrival"
BY_ID = "request id, label and prompt length"
BY_ORDER = "label, prompt length and order of arrival"
UNPAIRED = "unpaired"
ASSUMED = (BY_ID, BY_ORDER)
"""Ways of pairing that assume that prompts are the same."""
BY_CHANCE = 0.001
"""Probability below which unrelated requests do not agree as the pairs do."""
MOST_ORDERED = 5_000
"""Number of pairs whose order of arrival is looked at; of more pairs, evenly spread ones."""
SHUFFLES = 199
"""Number of random orders of arrival with which the one of a run is compared."""
SEED = 20_261_127


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """Paired requests of a first and a second run."""

    how: str
    """Way of pairing: BY_DIGEST, BY_ID, BY_ORDER or UNPAIRED."""
    first: Codes
    """Requests of the first run that have a partner, [pairs]; empty if unpaired."""
    second: Codes
    alone: int
    """Number of compared requests of either run that have no partner."""


def unpaired(alone: int) -> Pairing:
    """Return an empty pairing; `alone` requests have no partner."""
    none = np.empty(0, dtype=np.int64)
    return Pairing(how=UNPAIRED, first=none, second=none, alone=alone)


Key = tuple[Any, ...]


def pair(first: Requests, second: Requests, a: NDArray[np.bool_], b: NDArray[np.bool_]) -> Pairing:
    """Pair the requests that `a` and `b` select."""
    runs = ((first, a), (second, b))
    digests = [_keyed(_by_digest(requests), wanted) for requests, wanted in runs]
    if digests[0].keys() & digests[1].keys():  # made with one salt: these alone decide
        return _paired(BY_DIGEST, *digests) or unpaired(int(a.sum() + b.sum()))
    by_id = _paired(BY_ID, *(_keyed(_by_id(requests), wanted) for requests, wanted in runs))
    if by_id is not None and _agree_by_id(first, second, by_id):
        return by_id
    in_order = (_keyed(_by_order(requests), wanted) for requests, wanted in runs)
    by_order = _paired(BY_ORDER, *in_order)
    if by_order is not None and _agree_in_order(first, second, by_order):
        return by_order
    return unpaired(int(a.sum() + b.sum()))


def _paired(
    how: str, mine: Mapping[Hashable, int], theirs: Mapping[Hashable, int]
) -> Pairing | None:
    """Pair requests of equal keys; None if not enough requests of both runs have a partner."""
    shared = sorted(mine.keys() & theirs.keys(), key=lambda key: mine[key])
    if not shared or len(shared) < ENOUGH_PAIRED * max(len(mine), len(theirs)):
        return None
    return Pairing(
        how=how,
        first=np.array([mine[key] for key in shared]),
        second=np.array([theirs[key] for key in shared]),
        alone=len(mine) + len(theirs) - 2 * len(shared),
    )


def _kinds(requests: Requests, rows: Codes) -> list[Key]:
    """Return label and prompt length of requests, [rows]."""
    return list(zip(requests.labels[rows], requests.prompt_tokens[rows].tolist(), strict=True))


def _agree_by_id(first: Requests, second: Requests, pairing: Pairing) -> bool:
    """Whether pairs agree in label and prompt length far better than unrelated requests with the
    same ids would."""
    counts = []
    for requests, rows in ((first, pairing.first), (second, pairing.second)):
        number: dict[Key, int] = {}
        for kind in _kinds(requests, rows):
            number[kind] = number.get(kind, 0) + 1
        counts.append(number)
    pairs = len(pairing.first)
    chance = sum(n * counts[1].get(kind, 0) for kind, n in counts[0].items()) / pairs**2
    return pairs * math.log(max(chance, 1e-300)) < math.log(BY_CHANCE)


def _agree_in_order(first: Requests, second: Requests, pairing: Pairing) -> bool:
    """Whether requests of one label and length arrived at about the same place in both runs, closer
    than in random orders of the second run: then it was sent the same list."""
    some = slice(None, None, max(len(pairing.first) // MOST_ORDERED, 1))
    place = [
        np.argsort(np.argsort(requests.arrival_s[rows], kind="stable"))
        for requests, rows in ((first, pairing.first[some]), (second, pairing.second[some]))
    ]
    kinds = [str(kind) for kind in _kinds(first, pairing.first[some])]
    code = np.unique(kinds, return_inverse=True)[1]
    order = np.lexsort((place[0], code))
    mean_gap = float(np.abs(place[0] - place[1]).mean())
    random = np.random.RandomState(SEED)
    for _ in range(SHUFFLES):
        shuffled = random.permutation(len(code))
        theirs = np.lexsort((shuffled, code))
        if np.abs(place[0][order] - shuffled[theirs]).mean() <= mean_gap:
            return False
    return True


def _keyed(keys: list[Key], wanted: NDArray[np.bool_]) -> dict[Hashable, int]:
    """Return the request of each key; requests whose key is not known have none."""
    return {key: at for at, key in enumerate(keys) if wanted[at] and key}


def _by_id(requests: Requests) -> list[Key]:
    """Return replica, id, label and prompt length of each request, [requests]; () if the length is
    not known."""
    names, known = requests.keys.column("request").to_pylist(), np.isfinite(requests.prompt_tokens)
    columns = requests.replica.tolist(), names, requests.labels, requests.prompt_tokens.tolist()
    keys = zip(*columns, strict=True)
    return [key if is_known else () for key, is_known in zip(keys, known.tolist(), strict=True)]


def _by_digest(requests: Requests) -> list[Key]:
    """Return the prompt's digest, label and rank by arrival among requests equal in both,
    [requests]; () if there is no digest."""
    known = [bool(digest) for digest in requests.digests]
    return _ranked(requests, list(zip(requests.digests, requests.labels, strict=True)), known)


def _by_order(requests: Requests) -> list[Key]:
    """Return label, prompt length and rank by arrival among requests equal in both, [requests]; ()
    if the length is not known."""
    known = np.isfinite(requests.prompt_tokens).tolist()
    return _ranked(requests, _kinds(requests, np.arange(len(requests))), known)


def _ranked(requests: Requests, kinds: list[Key], known: Sequence[bool]) -> list[Key]:
    """Return each request's kind and its rank by arrival among those of that kind, [requests]; ()
    for a kind that is not known."""
    keys: list[Key] = [()] * len(requests)
    counts: dict[Key, int] = {}
    for at in np.argsort(requests.arrival_s, kind="stable").tolist():
        if not known[at]:
            continue
        kind = kinds[at]
        counts[kind] = counts.get(kind, 0) + 1
        keys[at] = (*kind, counts[kind])
    return keys


def pair_sides(a: Side, b: Side) -> Pairing:
    """Pair the requests of two sides."""
    if a.requests is None or b.requests is None:
        return unpaired(len(a.labels) + len(b.labels))
    wanted = [np.zeros(len(side.requests or ()), dtype=np.bool_) for side in (a, b)]
    for side_wanted, side in zip(wanted, (a, b), strict=True):
        side_wanted[side.asked] = True
    return pair(a.requests, b.requests, *wanted)


LEAST_APART = 0.01
"""Smallest difference in a label's share of the rounds for which the mixes differ."""


def common_mix(a: Side, b: Side) -> Mapping[str, float]:
    """Return the share of each label at which the runs are compared, in order of the name; {} if
    they have one mix, or no label in common. If only one label is common, it is compared alone.

    Labels with fewer than LEAST_CLUSTERS clusters of requests in either run count as one, OTHER; it
    is left out if it has too few itself.
    """
    often = set.intersection(*(_frequent(side, np.array(side.labels)) for side in (a, b)))
    names = [merged_labels(side, often) for side in (a, b)]
    known = set.intersection(*(_frequent(*named) for named in zip((a, b), names, strict=True)))
    shares = [label_shares(side, named) for side, named in zip((a, b), names, strict=True)]
    gaps = [abs(shares[0].get(n, 0.0) - shares[1].get(n, 0.0)) for n in {*shares[0], *shares[1]}]
    if not known or max(gaps) < LEAST_APART:
        return {}
    mean = {name: (shares[0][name] + shares[1][name]) / 2 for name in sorted(known)}
    return {name: share / sum(mean.values()) for name, share in mean.items()}


def _frequent(side: Side, names: NDArray[np.str_]) -> set[str]:
    """Return the names of enough clusters of requests."""
    pairs = {*zip(names.tolist(), side.rounds.cluster.tolist(), strict=True)}
    found, number = np.unique([name for name, _ in pairs], return_counts=True)
    return {str(name) for name, n in zip(found, number, strict=True) if n >= LEAST_CLUSTERS}


def merged_labels(side: Side, names: Mapping[str, float] | set[str]) -> NDArray[np.str_]:
    """Return the label of each row, OTHER if it is none of `names`, [rows]."""
    return np.array([label if label in names else OTHER for label in side.labels])


def label_shares(side: Side, names: NDArray[np.str_]) -> dict[str, float]:
    """Return the share of the rounds of each name."""
    found, at = np.unique(names, return_inverse=True)
    rounds = np.bincount(at, side.rounds.rounds.astype(np.float64))
    return dict(zip(found.tolist(), (rounds / rounds.sum()).tolist(), strict=True))
