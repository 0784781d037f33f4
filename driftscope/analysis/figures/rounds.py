"""Rounds of a run by request: their queries, sums of tokens verified and accepted, and the form in
which two runs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.figures.chains import Shape
from driftscope.analysis.figures.requests import Requests, Units
from driftscope.analysis.query.query_engine import Codes, Matrix, floats, in_order, ranked, whole
from driftscope.analysis.query.record_views import IN_BUCKETS, REQUEST, table
from driftscope.analysis.statistics.ratio import (
    Make,
    Ratio,
    marginal_ratio,
    ratio_of,
    ratio_over,
)
from driftscope.vocabulary import UndraftedReason

if TYPE_CHECKING:
    import ibis.expr.types as ir


def counts(
    verified: ir.IntegerColumn, accepted: ir.IntegerColumn, shape: Shape
) -> dict[str, ir.IntegerScalar]:
    """Return the sums that `driftscope.analysis.figures.rounds.rounds_of` reads. Lengths below
    K are counted one by one only if the run has them."""
    is_round = verified > 0
    return {
        "rounds": is_round.sum(),
        "verified": verified.sum(),
        **{f"verified_{n}": (verified == n).sum() for n in shape.shorter},
        **{f"whole_{n}": ((verified == n) & (accepted == n)).sum() for n in shape.shorter},
        **{f"accepted_{n}": (is_round & (accepted == n)).sum() for n in range(shape.k + 1)},
    }


def _accepted(rows: ir.Table, shape: Shape) -> dict[str, ir.IntegerScalar]:
    return counts(rows.verified.fill_null(0), rows.accepted.fill_null(0), shape)


def deliberate_steps() -> ir.Table:
    """Count the steps that drafted nothing on purpose, by reason."""
    rows = table("verify")
    meant = rows.filter(rows.reason.isin(UndraftedReason.DELIBERATE))
    return meant.group_by("reason").aggregate(rows=lambda t: t.count())


@cache
def by_context(shape: Shape) -> ir.Table:
    """Sum decode steps by request and by the power of two at or below the length of the context."""
    import ibis

    rows = table("verify")
    power = ibis.greatest(rows.position + 1, 1).log2().floor().cast("int64")
    rows = rows.mutate(bucket=power)
    verified, accepted = rows.verified.fill_null(0), rows.accepted.fill_null(0)
    none = verified <= 0
    lost = rows.reason == UndraftedReason.STRUCTURED_OUTPUT
    meant = rows.reason.isin(UndraftedReason.DELIBERATE)
    return rows.group_by("bucket", *REQUEST).aggregate(
        **_accepted(rows, shape),
        wrong=((accepted > verified) | (accepted < 0)).sum(),
        drafts=(rows.drafted.fill_null(0) > 0).sum(),
        undrafted=none.sum(),
        structured=(none & lost.fill_null(False)).sum(),
        deliberate=(none & meant.fill_null(False)).sum(),
        first_s=rows.time_s.min(),
        last_s=rows.time_s.max(),
        first_position=rows.position.min(),
    )


@cache
def by_batch(shape: Shape, *, narrowed: bool) -> ir.Table:
    """Sum rounds by request and by the power of two at or below the number of requests in their
    step, whether or not they meet the conditions. Unless the run is `narrowed`, the view has every
    row of a step, and its rows need not be joined with a count of all."""
    import ibis

    place, rows = ("replica", "step"), table("verify")
    if narrowed:
        every = table("verify_all", "verify")
        rows = rows.join(every.group_by(*place).aggregate(size=every.count()), place)
    else:
        rows = rows.mutate(size=rows.count().over(ibis.window(group_by=place)))
    rows = rows.filter(rows.verified > 0)
    rows = rows.mutate(bucket=rows.size.log2().floor().cast("int64"))
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def rounds_in_buckets(shape: Shape) -> ir.Table:
    """Sum decode steps by bucket and request."""
    rows = table(f"verify_{IN_BUCKETS}", "verify", bucket="string")
    rows = rows.filter(rows.bucket.notnull())
    return rows.group_by("bucket", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def by_length(shape: Shape) -> ir.Table:
    """Sum rounds by request and by the number of tokens that they verified."""
    rows = table("verify")
    rows = rows.filter(rows.verified > 0).mutate(length=rows.verified)
    return rows.group_by("length", *REQUEST).aggregate(**_accepted(rows, shape))


@cache
def reasons() -> ir.Table:
    """Count decode steps in which nothing was verified, and drafts that were cut, by request and
    reason."""
    rows = table("verify")
    none = rows.verified.fill_null(0) == 0
    cut = rows.drafted.fill_null(0) > rows.verified.fill_null(0)
    rows = rows.mutate(none=none, cut=cut).filter(none | cut)
    return rows.group_by("reason", *REQUEST).aggregate(
        none=lambda t: t.none.sum(), cut=lambda t: t.cut.sum()
    )


@cache
def cut_for_confidence() -> ir.Table:
    """Count drafts that were accepted up to where a low confidence cut them, by that depth."""
    rows = table("verify")
    verified, accepted = rows.verified.fill_null(0), rows.accepted.fill_null(0)
    cut = rows.filter((rows.reason == UndraftedReason.CONFIDENCE) & (verified == accepted))
    return cut.group_by("verified").aggregate(rows=lambda t: t.count())


CUT_APART = 0.01
"""Share of the drafts accepted up to a depth that may be cut before the next for those left to
count as all: if the tokens cut are accepted half as often, the rate of the others is half a point
too high."""


def uncut_of(at_risk: Counts, cut: Counts) -> int | None:
    """Return `Rounds.uncut` from the rounds in which token i could be accepted, [K], and the
    drafts that were cut before it although all before it was accepted, [K]."""
    some = np.flatnonzero(cut > CUT_APART * (at_risk + cut))
    return int(some[0]) if len(some) else None


@cache
def duration() -> ir.Table:
    """Return the times of the first and the last decode step."""
    rows = table("verify")
    return rows.aggregate(first_s=rows.time_s.min(), last_s=rows.time_s.max())


Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)  # without slots, for its cached properties
class Rounds:
    """Sums of decode steps, one row per request, or per request and bucket."""

    request: Codes
    """Request of each row, [rows]."""
    rounds: Counts
    verified: Counts
    """Tokens verified, [rows]."""
    histogram: Counts
    """Number of rounds with exactly 0 .. K tokens accepted, [rows, K + 1]."""
    lengths: Counts
    """Number of rounds that verified exactly 0 .. K tokens, [rows, K + 1]; none verified 0."""
    exhausted: Counts
    """Number of those rounds whose whole draft was accepted, [rows, K + 1]."""
    mix: Matrix
    """Acceptance length of the run's rounds that verified exactly 0 .. K tokens, minus that of all
    rounds, [K + 1]; 0 in a run of one K."""
    uncut: int | None = None
    """Number of leading depths at which hardly a draft that reached them was cut for its low
    confidence, see `CUT_APART`; None: all depths. Beyond, the tokens that were verified are the
    likely ones, the more so the busier the engine is, so that no two sets of rounds are compared
    there."""
    unit: Codes | None = None
    """Unit of the request of each row, [rows], see `figures.requests`; None: each request is
    one."""
    crossed: Codes | None = None
    """Prompt of each row, [rows], if prompts and units cross."""

    def __len__(self) -> int:
        """Return the number of rounds in all rows."""
        return int(self.rounds.sum())

    @property
    def k(self) -> int:
        """Tokens of the longest chain."""
        return int(self.histogram.shape[1]) - 1

    @property
    def comparable_k(self) -> int:
        """Number of leading depths at which rounds may be compared with others."""
        return self.k if self.uncut is None else self.uncut

    @property
    def requests(self) -> int:
        """Number of requests with a round."""
        return len(np.unique(self.request[self.rounds > 0]))

    @property
    def cluster(self) -> Codes:
        """Cluster of each row, [rows], over which figures have their variance."""
        return self.request if self.unit is None else self.unit

    @cached_property
    def reached(self) -> Counts:
        """Number of rounds with at least 1 .. K tokens accepted, [rows, K]."""
        return np.asarray(np.cumsum(self.histogram[:, ::-1], axis=1)[:, ::-1][:, 1:])

    @cached_property
    def deep_enough(self) -> Counts:
        """Number of rounds that verified at least 1 .. K tokens, [rows, K]."""
        return np.asarray(np.cumsum(self.lengths[:, ::-1], axis=1)[:, ::-1][:, 1:])

    @cached_property
    def at_risk(self) -> Counts:
        """Number of rounds that verified at least i tokens and had i-1 of them accepted, [rows,
        K]."""
        before = np.concatenate([self.rounds[:, None], self.reached[:, :-1]], axis=1)
        return np.asarray(before - self.exhausted[:, :-1])

    @cached_property
    def accepted(self) -> Counts:
        """Number of tokens accepted, [rows]."""
        return np.asarray(self.reached.sum(axis=1))

    def of(self, wanted: NDArray[np.bool_]) -> Rounds:
        """Return the rows of the requests that `wanted`, [requests], selects."""
        return self.where(wanted[self.request])

    def where(self, mine: NDArray[np.bool_] | Codes) -> Rounds:
        """Return the rows that a mask selects, or the rows at the given indices."""
        present = [name for name in (*_BY_ROW, *_UNITS) if getattr(self, name) is not None]
        return replace(self, **{name: getattr(self, name)[mine] for name in present})

    def grouped_like(self, other: Rounds) -> Rounds:
        """Return these rounds with the units of `other`, whose rows are partners of these."""
        return replace(self, unit=other.cluster, crossed=other.crossed)

    def ungrouped(self) -> Rounds:
        """Return these rounds with each request as a unit of its own."""
        return replace(self, unit=None, crossed=None)

    def by_cluster(self) -> Rounds:
        """Return the sums of the rows of each cluster, one row per cluster with a round."""
        kept = self.where(self.rounds > 0)
        number, at = ranked(kept.cluster)
        return replace(kept.by_group(at, len(number)), unit=None, crossed=None)

    def by_group(self, group: Codes, groups: int) -> Rounds:
        """Return the sums of the rows of each group, one row per group; `request` is the group's
        number, and so is its unit."""
        out: dict[str, Any] = {name: _grouped(getattr(self, name), group, groups) for name in _SUMS}
        return replace(self, request=np.arange(groups), unit=None, crossed=None, **out)

    def length_ratio(self, k: int | None = None) -> Ratio:
        """Return the acceptance length as served, [1], over clusters that have a round; of the
        first `k` depths, if given."""
        rounds = self.rounds[:, None]
        return self.over_clusters(ratio_of, rounds + self.accepted_to(k)[:, None], rounds)

    def accepted_to(self, k: int | None) -> Counts:
        """Return the number of tokens accepted, [rows], at the first `k` depths; at all, if
        None."""
        return self.accepted if k is None else np.asarray(self.reached[:, :k].sum(axis=1))

    def over_clusters(self, make: Make, *columns: Matrix | Counts) -> Ratio:
        """Return the ratios that `make` makes of the columns, [rows, m] each, over clusters that
        have a round."""
        has_rounds = self.rounds > 0
        rows = [column[has_rounds].astype(np.float64) for column in columns]
        crossed = None if self.crossed is None else self.crossed[has_rounds]
        return ratio_over(make, rows, self.cluster[has_rounds], crossed)

    def comparable_ratio(self) -> Ratio:
        """Return the acceptance length, [1], that the requests would have if their rounds verified
        like the run's: the effect of their own mix of K is removed.

        This is an indirect standardisation over K. In a run of one K it equals `length_ratio`.
        """
        return self.over_clusters(ratio_of, self.comparable_tokens(), self.rounds[:, None])

    def comparable_tokens(self) -> Matrix:
        """Return the tokens of the rounds at the `comparable_k` first depths, minus what their own
        mix of K adds, [rows, 1]; see above."""
        tokens = self.rounds + self.accepted_to(self.uncut) - self.lengths @ self.mix
        return np.asarray(tokens[:, None], dtype=np.float64)

    def marginal_ratio(self) -> Ratio:
        """Return the marginal acceptance at each depth, [K], over clusters that have a round."""
        sums = self.reached, self.at_risk, self.deep_enough
        return self.over_clusters(marginal_ratio, *sums)

    def conditional_ratio(self) -> Ratio:
        """Return the conditional acceptance at each depth, [K], over clusters that have a round."""
        return self.over_clusters(ratio_of, self.reached, self.at_risk)


_SUMS = ("rounds", "verified", "histogram", "lengths", "exhausted")
_BY_ROW = ("request", *_SUMS)
_UNITS = ("unit", "crossed")


def _grouped(values: Counts, group: Codes, groups: int) -> Counts:
    out = np.zeros((groups, *values.shape[1:]), dtype=np.int64)
    np.add.at(out, group, values)
    return out


def rounds_of(
    table: pa.Table,
    request: Codes,
    mix: Matrix,
    units: Units | None = None,
    uncut: int | None = None,
) -> Rounds:
    """Return the rounds of a pass by request; its rows belong to `request`, `mix` and `uncut` are
    those of `Rounds`, and `units` are those of all requests of the run."""
    crossed = None if units is None else units.crossed
    k = len(mix) - 1
    rounds = whole(table, "rounds")
    histogram = _columns(table, "accepted", k)
    lengths, exhausted = _columns(table, "verified", k), _columns(table, "whole", k)
    lengths[:, k] = rounds - lengths[:, :k].sum(axis=1)
    exhausted[:, k] = histogram[:, k]
    return Rounds(
        request=request,
        rounds=rounds,
        verified=whole(table, "verified"),
        histogram=histogram,
        lengths=lengths,
        exhausted=exhausted,
        mix=mix,
        uncut=uncut,
        unit=None if units is None else units.unit[request],
        crossed=None if crossed is None else crossed[request],
    )


def mix_of(table: pa.Table, k: int, uncut: int | None) -> Matrix:
    """Return `Rounds.mix` from a pass by the number of tokens verified, see `by_length`; of the
    first `uncut` depths."""
    verified = whole(table, "length")
    accepted = _columns(table, "accepted", k) @ np.minimum(np.arange(k + 1), uncut or k)
    tokens, rounds = np.zeros(k + 1), np.zeros(k + 1)
    np.add.at(rounds, verified, whole(table, "rounds"))
    np.add.at(tokens, verified, whole(table, "rounds") + accepted)
    return mix_over(rounds, tokens)


def mix_over(rounds: NDArray[Any], tokens: NDArray[Any]) -> Matrix:
    """Return `Rounds.mix` from the number of rounds and of their tokens, by tokens verified,
    [K + 1] each."""
    some = rounds > 0
    if some.sum() < 2:
        return np.zeros(len(rounds))
    of_all = tokens.sum() / rounds.sum()
    return np.where(some, tokens / np.where(some, rounds, 1.0) - of_all, 0.0)


def _columns(table: pa.Table, name: str, k: int) -> Counts:
    """Return the columns `<name>_0` .. `<name>_K`, [rows, K + 1]; 0 for a missing column."""
    present = set(table.column_names)
    columns = [f"{name}_{n}" for n in range(k + 1)]
    zero = np.zeros(table.num_rows, dtype=np.int64)
    return np.stack([whole(table, c) if c in present else zero for c in columns], axis=1)


def over_buckets(table: pa.Table) -> pa.Table:
    """Sum a pass by bucket and request over the buckets, in order of request."""
    rows = in_order(table, *REQUEST).combine_chunks()
    if not rows.num_rows:
        return rows.drop_columns(["bucket"])
    begins = [pc.not_equal(rows[name][1:], rows[name][:-1]) for name in REQUEST]
    first = np.flatnonzero(np.append(True, pc.or_(*begins).to_numpy()))
    totals = rows.select(list(REQUEST)).take(pa.array(first))
    times = {"first_s": np.minimum, "last_s": np.maximum, "first_position": np.minimum}
    for name in rows.drop_columns(["bucket", *REQUEST]).column_names:
        values = floats(rows, name) if name in times else whole(rows, name)
        sums = times.get(name, np.add).reduceat(values, first)
        totals = totals.append_column(name, pa.array(sums))
    return totals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """Requests of one run, and the rounds of those that have one, as runs are compared."""

    rounds: Rounds
    """One row per request with a round; no rows in a run that does not speculate."""
    labels: tuple[str, ...]
    """Workload label of each row, [rows]."""
    requests: Requests | None = None
    """All requests of the run, to which `Rounds.request` refers; None if nothing but sums is
    known."""
    is_part: bool = False
    """Whether conditions leave out some of the run's rounds."""

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.rounds.request):
            raise ValueError(f"{len(self.rounds.request)} rows have {len(self.labels)} labels")

    def __eq__(self, other: object) -> bool:
        """Whether both sides have equal data for equal rows."""
        if not isinstance(other, Side):
            return NotImplemented
        return self.labels == other.labels and all(
            np.array_equal(getattr(self.rounds, column.name), getattr(other.rounds, column.name))
            for column in fields(Rounds)
        )

    @property
    def asked(self) -> Codes:
        """Requests with a round, as indices; without speculation, requests that finished."""
        if len(self.rounds.request) or self.requests is None:
            return self.rounds.request
        return np.flatnonzero(self.requests.finished)

    def of(self, rows: NDArray[np.bool_] | Codes) -> Side:
        """Return the rows that a mask selects, or the rows at the given indices."""
        at = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(
            self, rounds=self.rounds.where(rows), labels=tuple(self.labels[i] for i in at)
        )

    def labelled(self, label: str) -> Side:
        """Return the rows of one label."""
        return self.of(np.array([name == label for name in self.labels], dtype=np.bool_))


def side_without_rounds(requests: Requests) -> Side:
    """Return the side of a run that does not speculate."""
    none = np.empty(0, dtype=np.int64)
    sums = np.zeros((0, 1), dtype=np.int64)
    rounds = Rounds(
        request=none,
        rounds=none,
        verified=none,
        histogram=sums,
        lengths=sums,
        exhausted=sums,
        mix=np.zeros(1),
    )
    return Side(rounds=rounds, labels=(), requests=requests)


def grouped(sides: Sequence[Side], most: int, *, paired: bool) -> tuple[Side, ...]:
    """Group the rows of each side into at most `most` groups of one label and of whole units, or
    one group per label if there are more labels; rows of `paired` sides stay pairs."""
    out = []
    for side in sides:
        if len(side.labels) <= most:
            out.append(side)
            continue
        named = sides[0] if paired else side
        labels, kind = np.unique(np.array(named.labels), return_inverse=True)
        number = max(most // len(labels), 1)
        place = ranked(named.rounds.cluster)[1] % number
        _, first, group = np.unique(kind * number + place, return_index=True, return_inverse=True)
        rounds = replace(side.rounds.by_group(group, len(first)), unit=place[first])
        out.append(Side(rounds=rounds, labels=tuple(named.labels[at] for at in first)))
    return tuple(out)
