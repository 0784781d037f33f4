"""One run's rounds by request, in a form that two runs are compared in and a report can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.figures.request_codes import MAX_CLUSTERS, Requests
from driftscope.analysis.figures.request_pairing import Key, keys_by_id, keys_by_order
from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Codes

UNKNOWN = ""
"""Key of a row whose prompt is not known: it is paired with nothing."""
_MOST_TEMPERATURES = 8
_NOT_BY_ROW = ("request", "mix")
"""Fields of rounds that are no sums by request."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """A row per request that has a round; of more than MAX_CLUSTERS requests, and of fewer in a
    report, a row per group of requests of one label, see `grouped`."""

    rounds: Rounds
    labels: tuple[str, ...]
    """[rows] workload label."""
    ids: tuple[str, ...] = ()
    """[rows] digest of request id, label and prompt length; () pairs nothing."""
    orders: tuple[str, ...] = ()
    """[rows] digest of label, prompt length and place in the order of arrival."""
    temperatures: tuple[float, ...] = ()
    """Distinct sampling temperatures of the requests, ascending, the first ones of many."""

    def __post_init__(self) -> None:
        rows = {len(each) for each in (self.ids, self.orders) if each} | {len(self.labels)}
        if rows != {len(self.rounds.request)}:
            raise ValueError(f"a side of {len(self.rounds.request)} rows has names of {rows}")

    def __eq__(self, other: object) -> bool:
        """Whether the same is known of the same rows."""
        if not isinstance(other, Side):
            return NotImplemented
        mine, theirs = ((s.labels, s.ids, s.orders, s.temperatures) for s in (self, other))
        return mine == theirs and all(
            np.array_equal(getattr(self.rounds, each.name), getattr(other.rounds, each.name))
            for each in fields(Rounds)
        )

    def of(self, rows: NDArray[np.bool_] | Codes) -> Side:
        """Some of the rows, or rows in an order."""
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(
            self,
            rounds=self.rounds.where(rows),
            labels=tuple(self.labels[i] for i in at),
            ids=tuple(self.ids[i] for i in at) if self.ids else (),
            orders=tuple(self.orders[i] for i in at) if self.orders else (),
        )

    def labelled(self, label: str) -> Side:
        """The rows of one label."""
        return self.of(np.array([each == label for each in self.labels], dtype=np.bool_))


def side_of(run: Sums) -> Side:
    """Return the rounds of a run by request; requests without a round are left out."""
    return side_of_rounds(run.rounds, run.requests)


def side_of_rounds(rounds: Rounds, requests: Requests) -> Side:
    """The side of a run; requests without a round are left out."""
    rounds = rounds.where(rounds.rounds > 0)
    rows = rounds.request.tolist()
    few = len(rows) <= MAX_CLUSTERS
    by_id, by_order = keys_by_id(requests), keys_by_order(requests) if few else []
    known = np.unique(np.round(requests.temperature[np.isfinite(requests.temperature)], 3))
    whole = Side(
        rounds=rounds,
        labels=tuple(str(requests.labels[row]) for row in rows),
        ids=tuple(_digest(by_id[row]) for row in rows),
        orders=tuple(_digest(by_order[row]) for row in rows) if few else (),
        temperatures=tuple(known.tolist()[:_MOST_TEMPERATURES]),
    )
    return whole if few else grouped(whole, MAX_CLUSTERS)


def grouped(side: Side, most: int) -> Side:
    """At most `most` groups of rows, or one a label where there are more, by label and place in the
    order of arrival, else by id: two runs of the same prompts have the same groups. A group's names
    are those of all of its rows."""
    if len(side.labels) <= most:
        return side
    labels, kind = np.unique(np.array(side.labels), return_inverse=True)
    each = max(most // len(labels), 1)
    names = side.orders or side.ids or (UNKNOWN,) * len(side.labels)
    numbers = [int(name, 16) if name else at for at, name in enumerate(names)]
    place = np.array([number % each for number in numbers], dtype=np.int64)
    _, first, group = np.unique(kind * each + place, return_index=True, return_inverse=True)
    return replace(
        side,
        rounds=side.rounds.by_group(group, len(first)),
        labels=tuple(side.labels[at] for at in first),
        ids=_joined(side.ids, group, len(first)) if side.ids else (),
        orders=_joined(side.orders, group, len(first)) if side.orders else (),
    )


def _joined(names: Sequence[str], group: Codes, groups: int) -> tuple[str, ...]:
    """Return one id for a set of rows, whatever their order; UNKNOWN where one row's id is."""
    mixed, known = [0] * groups, [True] * groups
    for name, at in zip(names, group.tolist(), strict=True):
        mixed[at] ^= int(name or "0", 16)
        known[at] &= bool(name)
    return tuple(f"{m:016x}" if k else UNKNOWN for m, k in zip(mixed, known, strict=True))


def _digest(key: Key) -> str:
    if not key:
        return UNKNOWN
    return blake2b(repr(key).encode(), digest_size=8).hexdigest()
