"""Rounds by request: how many drafted and accepted how much, and decode steps without a draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes, Matrix, whole
from driftscope.analysis.statistics.interval import Ratio, ratio_of
from driftscope.analysis.statistics.risk_sets import conditional_ratio, marginal_ratio

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounds:
    """Sums of decode steps, one row per request (and per bucket, where they are in buckets)."""

    request: Codes
    """[rows] which request."""
    rounds: Counts
    drafted: Counts
    """Tokens drafted."""
    histogram: Counts
    """[rows, K + 1] rounds with exactly 0 .. K tokens accepted."""
    lengths: Counts
    """[rows, K + 1] rounds that drafted exactly 0 .. K tokens; none drafted 0."""
    exhausted: Counts
    """[rows, K + 1] of those, rounds whose whole draft was accepted."""
    mix: Matrix
    """[K + 1] acceptance length over the run of rounds that drafted exactly 0 .. K tokens, less
    that of all rounds; 0 in a run of one K."""

    def __len__(self) -> int:
        """Rounds in all."""
        return int(self.rounds.sum())

    @property
    def k(self) -> int:
        """Tokens of the longest chain."""
        return int(self.histogram.shape[1]) - 1

    @property
    def requests(self) -> int:
        """Requests with a round."""
        return len(np.unique(self.request[self.rounds > 0]))

    @property
    def reached(self) -> Counts:
        """[rows, K] rounds with at least 1 .. K tokens accepted."""
        return np.asarray(np.cumsum(self.histogram[:, ::-1], axis=1)[:, ::-1][:, 1:])

    @property
    def deep_enough(self) -> Counts:
        """[rows, K] rounds that drafted at least 1 .. K tokens."""
        return np.asarray(np.cumsum(self.lengths[:, ::-1], axis=1)[:, ::-1][:, 1:])

    @property
    def at_risk(self) -> Counts:
        """[rows, K] rounds that drafted at least i tokens, of which i-1 were accepted."""
        before = np.concatenate([self.rounds[:, None], self.reached[:, :-1]], axis=1)
        return np.asarray(before - self.exhausted[:, :-1])

    @property
    def accepted(self) -> Counts:
        """[rows] tokens accepted."""
        return np.asarray(self.reached.sum(axis=1))

    def of(self, wanted: NDArray[np.bool_]) -> Rounds:
        """Those of the requests that `wanted`, [requests], names."""
        return self.where(wanted[self.request])

    def where(self, mine: NDArray[np.bool_] | Codes) -> Rounds:
        """Some of the rows, or rows in an order."""
        return replace(self, **{name: getattr(self, name)[mine] for name in _BY_ROW})

    def by_group(self, group: Codes, groups: int) -> Rounds:
        """Sums of the rows of each group, a row each; `request` is the group's number."""
        out: dict[str, Any] = {name: _grouped(getattr(self, name), group, groups) for name in _SUMS}
        return replace(self, request=np.arange(groups), **out)

    def length_ratio(self) -> Ratio:
        """Acceptance length as served, [1], over requests that have a round."""
        there = self.rounds > 0
        rounds = self.rounds[there].astype(np.float64)[:, None]
        return ratio_of(rounds + self.accepted[there][:, None], rounds)

    def comparable_ratio(self) -> Ratio:
        """The acceptance length, [1], that the requests would have if their rounds drafted as the
        run's do: what a mix of K of their own adds or takes is taken out.

        Indirect standardisation over K. In a run of one K this is `length_ratio`.
        """
        there = self.rounds > 0
        return ratio_of(self.comparable_tokens()[there], self.rounds[there][:, None].astype(float))

    def comparable_tokens(self) -> Matrix:
        """[rows, 1] tokens of the rounds, less what their own mix of K adds; see above."""
        by_mix = self.lengths @ self.mix
        return np.asarray((self.rounds + self.accepted - by_mix)[:, None], dtype=np.float64)

    def marginal_ratio(self) -> Ratio:
        """Marginal acceptance at each depth, [K], over requests that have a round."""
        there = self.rounds > 0
        sums = self.reached[there], self.at_risk[there], self.deep_enough[there]
        return marginal_ratio(*(each.astype(np.float64) for each in sums))

    def conditional_ratio(self) -> Ratio:
        """Conditional acceptance at each depth, [K], over requests that have a round."""
        there = self.rounds > 0
        return conditional_ratio(*(e[there].astype(float) for e in (self.reached, self.at_risk)))


_SUMS = ("rounds", "drafted", "histogram", "lengths", "exhausted")
_BY_ROW = ("request", *_SUMS)


def _grouped(values: Counts, group: Codes, groups: int) -> Counts:
    out = np.zeros((groups, *values.shape[1:]), dtype=np.int64)
    np.add.at(out, group, values)
    return out


def rounds_of(table: pa.Table, request: Codes, mix: Matrix) -> Rounds:
    """The rounds of a pass by request, whose rows belong to `request`; `mix` as in `Rounds`."""
    k = len(mix) - 1
    rounds = whole(table, "rounds")
    histogram = _columns(table, "accepted", k)
    lengths, exhausted = _columns(table, "drafted", k), _columns(table, "whole", k)
    lengths[:, k] = rounds - lengths[:, :k].sum(axis=1)
    exhausted[:, k] = histogram[:, k]
    return Rounds(
        request=request,
        rounds=rounds,
        drafted=whole(table, "drafted"),
        histogram=histogram,
        lengths=lengths,
        exhausted=exhausted,
        mix=mix,
    )


def mix_of(table: pa.Table, k: int) -> Matrix:
    """`Rounds.mix` of a pass by the number of tokens drafted, see `passes.rounds.by_length`."""
    drafted = whole(table, "length")
    accepted = _columns(table, "accepted", k) @ np.arange(k + 1)
    tokens, rounds = np.zeros(k + 1), np.zeros(k + 1)
    np.add.at(rounds, drafted, whole(table, "rounds"))
    np.add.at(tokens, drafted, whole(table, "rounds") + accepted)
    return mix_over(rounds, tokens)


def mix_over(rounds: NDArray[Any], tokens: NDArray[Any]) -> Matrix:
    """`Rounds.mix` of rounds, and of the tokens that they yielded, by tokens drafted, [K + 1]."""
    some = rounds > 0
    if some.sum() < 2:
        return np.zeros(len(rounds))
    of_all = tokens.sum() / rounds.sum()
    return np.where(some, tokens / np.where(some, rounds, 1.0) - of_all, 0.0)


def _columns(table: pa.Table, name: str, k: int) -> Counts:
    """[rows, K + 1] the columns `<name>_0` .. `<name>_K`; 0 where there is none."""
    there = set(table.column_names)
    columns = [f"{name}_{n}" for n in range(k + 1)]
    zero = np.zeros(table.num_rows, dtype=np.int64)
    return np.stack([whole(table, c) if c in there else zero for c in columns], axis=1)


def over_buckets(table: pa.Table) -> pa.Table:
    """A pass by bucket and request, by request."""
    how = {"bucket": None, "replica": None, "request": None, "first_s": "min", "last_s": "max"}
    summed = [(name, how.get(name, "sum")) for name in table.column_names]
    wanted = [(name, each) for name, each in summed if each]
    found = table.group_by(["replica", "request"]).aggregate(wanted)
    names = {f"{name}_{each}": name for name, each in wanted}
    return found.rename_columns([names.get(name, name) for name in found.column_names])
