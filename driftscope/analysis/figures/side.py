"""Rounds of one run by request, in the form in which two runs are compared, and pairs of requests
that asked the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import MAX_CLUSTERS, Requests
from driftscope.analysis.figures.rounds import Rounds
from driftscope.analysis.query.column_arrays import Codes, ranked

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


UNKNOWN = ""
"""Key of a row whose prompt is not known; it is paired with nothing."""
_MOST_TEMPERATURES = 8
_NOT_BY_ROW = ("request", "mix")
"""Fields of rounds that are not sums by request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """Rounds of one run, one row per request that has a round. Above MAX_CLUSTERS requests, and
    above fewer in a report, there is one row per group of requests of one label, see `grouped`."""

    rounds: Rounds
    labels: tuple[str, ...]
    """Workload label of each row, [rows]."""
    ids: tuple[str, ...] = ()
    """Digests of request id, label and prompt length, [rows]; () pairs nothing."""
    orders: tuple[str, ...] = ()
    """Digests of label, prompt length and rank by arrival, [rows]; () pairs nothing."""
    digests: tuple[str, ...] = ()
    """Digests of prompt digest, label and rank by arrival, [rows]; () pairs nothing."""
    temperatures: tuple[float, ...] = ()
    """Distinct sampling temperatures of the requests, ascending; only the first few if there are
    many."""

    def __post_init__(self) -> None:
        rows = {len(each) for each in self._names() if each} | {len(self.labels)}
        if rows != {len(self.rounds.request)}:
            raise ValueError(f"a side of {len(self.rounds.request)} rows has names of {rows}")

    def _names(self) -> tuple[tuple[str, ...], ...]:
        return self.ids, self.orders, self.digests

    def __eq__(self, other: object) -> bool:
        """Whether both sides have equal data for equal rows."""
        if not isinstance(other, Side):
            return NotImplemented
        mine, theirs = ((s.labels, *s._names(), s.temperatures) for s in (self, other))
        return mine == theirs and all(
            np.array_equal(getattr(self.rounds, each.name), getattr(other.rounds, each.name))
            for each in fields(Rounds)
        )

    def of(self, rows: NDArray[np.bool_] | Codes) -> Side:
        """Return the rows that a mask selects, or the rows at the given indices."""
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(
            self,
            rounds=self.rounds.where(rows),
            labels=tuple(self.labels[i] for i in at),
            ids=tuple(self.ids[i] for i in at) if self.ids else (),
            orders=tuple(self.orders[i] for i in at) if self.orders else (),
            digests=tuple(self.digests[i] for i in at) if self.digests else (),
        )

    def labelled(self, label: str) -> Side:
        """Return the rows of one label."""
        return self.of(np.array([each == label for each in self.labels], dtype=np.bool_))


def side_of_rounds(rounds: Rounds, requests: Requests) -> Side:
    """Return the side of a run; requests without a round are left out."""
    rounds = rounds.where(rounds.rounds > 0)
    rows = rounds.request.tolist()
    few = len(rows) <= MAX_CLUSTERS
    by_id, by_order = keys_by_id(requests), keys_by_order(requests) if few else []
    by_digest = keys_by_digest(requests)
    known = np.unique(np.round(requests.temperature[np.isfinite(requests.temperature)], 3))
    whole = Side(
        rounds=rounds,
        labels=tuple(str(requests.labels[row]) for row in rows),
        ids=tuple(_digest(by_id[row]) for row in rows),
        orders=tuple(_digest(by_order[row]) for row in rows) if few else (),
        digests=tuple(_digest(by_digest[row]) for row in rows),
        temperatures=tuple(known.tolist()[:_MOST_TEMPERATURES]),
    )
    return whole if few else grouped(whole, MAX_CLUSTERS)


def grouped(side: Side, most: int) -> Side:
    """Group the rows into at most `most` groups, or one per label if there are more labels. Groups
    are made by label and by unit or, if each request is one, by rank of arrival or id, so that two
    runs of the same prompts have the same groups. Requests of one unit are in groups of one unit,
    and the id of a group depends on the ids of all of its rows."""
    if len(side.labels) <= most:
        return side
    labels, kind = np.unique(np.array(side.labels), return_inverse=True)
    each = max(most // len(labels), 1)
    place = _places(side) % np.uint64(each)
    _, first, group = np.unique(
        kind * each + place.astype(np.int64), return_index=True, return_inverse=True
    )
    return replace(
        side,
        rounds=replace(side.rounds.by_group(group, len(first)), unit=place[first].astype(np.int64)),
        labels=tuple(side.labels[at] for at in first),
        ids=_joined(side.ids, group, len(first)) if side.ids else (),
        orders=_joined(side.orders, group, len(first)) if side.orders else (),
        digests=_joined(side.digests, group, len(first)) if side.digests else (),
    )


def _places(side: Side) -> NDArray[np.uint64]:
    """Return a number for each row, [rows], equal for rows of one unit. It is made from the names
    of the unit's requests, so that it is equal in two runs of the same prompts."""
    names = side.orders or side.ids or (UNKNOWN,) * len(side.labels)
    numbers = [int(name, 16) if name else at for at, name in enumerate(names)]
    _, unit = ranked(side.rounds.cluster)
    place = np.full(int(unit.max(initial=-1)) + 1, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(place, unit, np.array(numbers, dtype=np.uint64))
    return np.asarray(place[unit])


def _joined(names: Sequence[str], group: Codes, groups: int) -> tuple[str, ...]:
    """Return one id for each set of rows, independent of their order; UNKNOWN if a row's id is
    UNKNOWN."""
    mixed, known = [0] * groups, [True] * groups
    for name, at in zip(names, group.tolist(), strict=True):
        mixed[at] ^= int(name or "0", 16)
        known[at] &= bool(name)
    return tuple(f"{m:016x}" if k else UNKNOWN for m, k in zip(mixed, known, strict=True))


def _digest(key: Key) -> str:
    return blake2b(repr(key).encode(), digest_size=8).hexdigest() if key else UNKNOWN
