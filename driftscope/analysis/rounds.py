"""Rounds by request: how many accepted how much, and decode steps without a draft."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.columns import Codes, Matrix, whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """Sums of decode steps, one row per request (and per bucket, where they are in buckets)."""

    request: Codes
    """[rows] which request."""
    rounds: NDArray[np.int64]
    drafted: NDArray[np.int64]
    """Tokens drafted."""
    short: NDArray[np.int64]
    """Rounds that drafted fewer than K."""
    histogram: NDArray[np.int64]
    """[rows, K + 1] rounds with exactly 0 .. K tokens accepted."""

    def __len__(self) -> int:
        """Rounds in all."""
        return int(self.rounds.sum())

    @property
    def requests(self) -> int:
        """Requests with a round."""
        return len(np.unique(self.request[self.rounds > 0]))

    @property
    def reached(self) -> NDArray[np.int64]:
        """[rows, K] rounds with at least 1 .. K tokens accepted."""
        return np.asarray(np.cumsum(self.histogram[:, ::-1], axis=1)[:, ::-1][:, 1:])

    @property
    def accepted(self) -> NDArray[np.int64]:
        """[rows] tokens accepted."""
        return np.asarray(self.reached.sum(axis=1))

    def of(self, wanted: NDArray[np.bool_]) -> Rounds:
        """Those of the requests that `wanted`, [requests], names."""
        return self.where(wanted[self.request])

    def where(self, mine: NDArray[np.bool_] | Codes) -> Rounds:
        """Some of the rows, or rows in an order."""
        return Rounds(
            request=self.request[mine],
            rounds=self.rounds[mine],
            drafted=self.drafted[mine],
            short=self.short[mine],
            histogram=self.histogram[mine],
        )

    def by_request(self) -> tuple[Matrix, Matrix]:
        """[requests, 1 + K] sums of what an acceptance length and the marginal rates are made of,
        and [requests, 1] rounds, of requests that have any."""
        there = self.rounds > 0
        rounds = self.rounds[there].astype(np.float64)[:, None]
        reached = self.reached[there].astype(np.float64)
        length = rounds + reached.sum(axis=1, keepdims=True)
        return np.hstack([length, reached]), rounds


def rounds_of(table: pa.Table, request: Codes, k: int) -> Rounds:
    """The rounds of a pass by request, whose rows belong to `request`."""
    return Rounds(
        request=request,
        rounds=whole(table, "rounds"),
        drafted=whole(table, "drafted"),
        short=whole(table, "short"),
        histogram=np.stack([whole(table, f"accepted_{n}") for n in range(k + 1)], axis=1),
    )


def over_buckets(table: pa.Table) -> pa.Table:
    """A pass by bucket and request, by request."""
    how = {"bucket": None, "replica": None, "request": None, "first_s": "min", "last_s": "max"}
    summed = [(name, how.get(name, "sum")) for name in table.column_names]
    wanted = [(name, each) for name, each in summed if each]
    found = table.group_by(["replica", "request"]).aggregate(wanted)
    names = {f"{name}_{each}": name for name, each in wanted}
    return found.rename_columns([names.get(name, name) for name in found.column_names])
