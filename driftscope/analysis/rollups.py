"""Fleets from sums by minute: what each replica accepts, and which accepts less than the others.

Rounds of a minute are not independent, nor are neighbouring minutes, which have requests in common.
The unit of inference is therefore a span of minutes, at most MOST_SPANS of them, and the interval
is that of a ratio of sums over spans (`statistics.ratio`), widened by what neighbouring spans still
have in common. Replicas that serve different mixes are
compared by indirect standardisation: the tokens that a replica's rounds accepted over those that
the other replicas accept at the same depths of the same kinds of rounds, weighted by the replica's
own rounds. With n replicas each interval holds at a level for all of them together (Bonferroni).
Healthy replicas differ, too, where a router keeps users on one: from FEWEST_FOR_SPREAD replicas on,
their robust spread beyond what spans explain widens each interval.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import UNFINISHED, UNLABELLED
from driftscope.analysis.query.query_engine import Codes, whole
from driftscope.analysis.query.record_views import IN_BUCKETS, cut, narrow, open_run, table
from driftscope.analysis.query.row_filters import Bucket, Filter
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import (
    FEWEST_CLUSTERS,
    MOST_SPANS,
    PairedRatio,
    Ratio,
    intervals,
    ratio_of,
)
from driftscope.errors import DamagedTraceError, NoDataError
from driftscope.trace.manifest import CLIENT, WAS_SIMULATED, Manifest, client_manifest
from driftscope.trace.rollups import KINDS, SCHEMA, read_rollups

SPAN_MINUTES = 5
"""Least length of a span in minutes: most requests end within it."""
FEWEST_FOR_SPREAD = 10
"""Replicas from which their own spread is estimated."""
COVERED = 0.5
"""Least share of a replica's rounds that others have of the same kind, for a comparison."""
NEEDS_ROWS = (
    "these are sums by minute: attention, hidden states, confidence, times and single "
    "requests need rows; run `driftscope analyze RUN` where a replica recorded them"
)
_MINUTE_MS, _NAMED = 60_000, ("replica", *KINDS)
_BY_ROUND = ("minute", "bucket", "power", "replica")
_BUCKET = Bucket(
    sql=f"coalesce(adapter, '') || chr(31) || CASE WHEN output_tokens IS NULL THEN '{UNFINISHED}' "
    f"ELSE coalesce(label, '{UNLABELLED}') END || chr(31) || coalesce(region, '')",
    names=frozenset(("adapter", "label", "region", "output_tokens")),
)
"""Adapter, label and kind of text of a round, the last "" where it was not recorded."""


def rollup_of(run: Path, label: str, only: Filter) -> tuple[str, pa.Table]:
    """Return a name of the run and its sums by minute; `label` names the replica.

    Raises NoDataError for a run without rounds, and what `open_run` raises.
    """
    import ibis

    tables = open_run(run)
    try:
        manifest = tables.manifest
        if manifest.engine == CLIENT or manifest.is_simulated:
            why = WAS_SIMULATED if manifest.is_simulated else "was recorded by no probe"
            raise NoDataError(f"{run}: {why}, so there is no rollup; give the server's run")
        if only.where is not None:
            narrow(tables, only.conditions(math.inf))
        cut(tables, "verify", "verify", _BUCKET)
        rows = table(f"verify_{IN_BUCKETS}", "verify", bucket="string")
        rows = rows.filter(rows.verified > 0).mutate(
            minute=(rows.time_s / 60).floor().cast("int64"),
            power=ibis.greatest(rows.position + 1, 1).log2().floor().cast("int64"),
            accepted=rows.accepted.fill_null(0),
        )
        sums = tables.engine.rows(
            rows.group_by(*_BY_ROUND, "verified", "accepted").aggregate(rounds=rows.count())
        )
    finally:
        tables.close()
    if not sums.num_rows:
        raise NoDataError(f"{run}: has no rounds, so there is no rollup")
    return f"{label}-{manifest.run_id}", _by_depth(sums, manifest, label)


def _by_depth(sums: pa.Table, manifest: Manifest, label: str) -> pa.Table:
    verified, accepted, rounds = (whole(sums, name) for name in ("verified", "accepted", "rounds"))
    parts = []
    for depth in range(1, int(verified.max()) + 1):
        reaches = verified >= depth
        reached = np.where(accepted >= depth, rounds, 0)[reaches]
        part = sums.filter(pa.array(reaches)).select(_BY_ROUND)
        for name, column in (("rounds", rounds[reaches]), ("accepted", reached)):
            part = part.append_column(name, pa.array(column))
        part = part.group_by(list(_BY_ROUND)).aggregate([("rounds", "sum"), ("accepted", "sum")])
        parts.append(part.append_column("depth", pa.array(np.full(part.num_rows, depth))))
    found = pa.concat_tables(parts)
    replica = [
        f"{label} replica {n}" if manifest.data_parallel > 1 else label
        for n in found.column("replica").to_pylist()
    ]
    drafter = manifest.drafter.name if manifest.drafter else manifest.method
    adapter, text_label, region = zip(
        *(bucket.split("\x1f") for bucket in found.column("bucket").to_pylist()), strict=True
    )
    columns = {
        "minute": pa.array(whole(found, "minute") * _MINUTE_MS).cast(pa.timestamp("ms", tz="UTC")),
        "replica": pa.array(replica, pa.string()),
        "model": pa.repeat(manifest.target.name, found.num_rows),
        "drafter": pa.repeat(drafter, found.num_rows),
        "adapter": pa.array(adapter),
        "label": pa.array(text_label),
        "region": pa.array(region),
        "context": pa.array(1 << whole(found, "power")),
        "depth": found.column("depth"),
        "rounds": found.column("rounds_sum"),
        "accepted": found.column("accepted_sum"),
    }
    return pa.table(columns, schema=SCHEMA).sort_by([(name, "ascending") for name in SCHEMA.names])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollups:
    """Sums of a folder of rollups by replica, span of time, kind of rounds and depth."""

    path: Path
    replicas: tuple[str, ...]
    kinds: tuple[tuple[str, ...], ...]
    """Values of KINDS of each kind of rounds."""
    begin_s: float
    end_s: float
    """Unix times between which the minutes lie."""
    replica: Codes
    """Place in `replicas`; rows of this and the next five fields are the same sums."""
    span: Codes
    kind: Codes
    """Place in `kinds`."""
    depth: Codes
    rounds: NDArray[np.float64]
    """Rounds that verified the depth."""
    accepted: NDArray[np.float64]
    """Rounds that accepted tokens up to the depth."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the rollups as a measurement from outside, with what they cannot answer."""
        models, drafters = ({kind[at] for kind in self.kinds} for at in (0, 1))
        model = models.pop() if len(models) == 1 else ""
        names = (*self.replicas, *sorted(drafters), self.period)
        run_id = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        facts = {"model": model, "speculates": True}
        return client_manifest(run_id, facts, {}, (NEEDS_ROWS,), created_s=self.begin_s)

    @property
    def period(self) -> str:
        """Period that the rollups cover, in words."""
        begin, end = (
            datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
            for at in (self.begin_s, self.end_s)
        )
        return f"{begin} to {end} UTC"

    def values_of(self, name: str) -> tuple[tuple[str, ...], Codes]:
        """Return the values of one of KINDS, in order, and the place of each row's value."""
        values = [kind[KINDS.index(name)] for kind in self.kinds]
        known = sorted(set(values), key=lambda text: (len(text), text))
        return tuple(known), np.array([known.index(value) for value in values])[self.kind]


def open_rollups(path: Path) -> Rollups:
    """Read a folder of rollups; raises what `read_rollups` raises."""
    known: tuple[dict[object, int], ...] = tuple({} for _ in _NAMED)
    parts = [_sums_of(rows, known) for rows in read_rollups(path)]
    columns = np.concatenate(parts, axis=1)
    slot = columns[0]
    begin, end = int(slot.min()), int(slot.max()) + 1
    if end - begin > _MOST_SLOTS:
        raise DamagedTraceError(
            f"{path}: minutes from {begin * SPAN_MINUTES * 60} to {end * SPAN_MINUTES * 60} s of "
            "Unix time are more than a year; give the folder of one day"
        )
    columns[0] = (slot - begin) // max(1, math.ceil((end - begin) / MOST_SPANS))
    span, replica, *kind, depth, rounds, accepted = _summed(columns)
    places = np.stack(kind)
    kinds, place = np.unique(places, axis=1, return_inverse=True)
    names = [[str(name) for name in values] for values in known]
    return Rollups(
        path=path,
        replicas=tuple(names[0]),
        kinds=tuple(
            tuple(values[at] for values, at in zip(names[1:], row, strict=True))
            for row in kinds.T.tolist()
        ),
        begin_s=begin * SPAN_MINUTES * 60.0,
        end_s=end * SPAN_MINUTES * 60.0,
        replica=replica,
        span=span,
        kind=place.reshape(-1),
        depth=depth,
        rounds=rounds.astype(np.float64),
        accepted=accepted.astype(np.float64),
    )


_MOST_SLOTS = 366 * 24 * 60 // SPAN_MINUTES


def _sums_of(rows: pa.Table, known: tuple[dict[object, int], ...]) -> NDArray[np.int64]:
    """Return the sums of one file by slot of SPAN_MINUTES, as columns; `known` numbers the names of
    all files, and is added to."""
    columns = [whole(rows, "minute") // (SPAN_MINUTES * _MINUTE_MS)]
    for name, numbers in zip(_NAMED, known, strict=True):
        coded = pc.dictionary_encode(rows.column(name).combine_chunks())
        places = [numbers.setdefault(value, len(numbers)) for value in coded.dictionary.to_pylist()]
        columns.append(np.array(places)[coded.indices.to_numpy()])
    columns += [whole(rows, name) for name in ("depth", "rounds", "accepted")]
    return _summed(np.stack(columns).astype(np.int64))


def _summed(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the last two columns over rows that agree in all others, in order."""
    keys = columns[:-2]
    low = keys.min(axis=1)
    sizes = tuple(int(size) for size in keys.max(axis=1) - low + 1)
    if math.prod(sizes) < _MOST_PLACES:  # one number for each place sorts several times as fast
        place = np.ravel_multi_index(tuple(keys - low[:, None]), sizes)
        order = np.argsort(place, kind="stable")
        change = np.diff(place[order]) != 0
    else:
        order = np.lexsort(keys[::-1])
        change = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    starts = np.flatnonzero(np.concatenate([[True], change]))
    sums = np.add.reduceat(columns[-2:, order], starts, axis=1)
    return np.concatenate([keys[:, order[starts]], sums])


_MOST_PLACES = 1 << 62


def length_interval(rollups: Rollups, rows: NDArray[np.bool_]) -> Interval | None:
    """Return the 95% interval of the acceptance length of some rows: over spans of time, or over
    replicas if it is wider and there are enough."""
    first = np.where(rollups.depth == 1, rollups.rounds, 0.0)[rows]
    found = list[Interval | None]()
    span = rollups.span[rows]
    for cluster in (span, rollups.replica[rows]):
        bottom = _sums_by_group(cluster, first)[:, None]
        top = bottom + _sums_by_group(cluster, rollups.accepted[rows])[:, None]
        has_rounds = bottom[:, 0] > 0
        ratio = ratio_of(top[has_rounds], bottom[has_rounds])
        spread = intervals(ratio)
        found.append(spread[0] if spread else None)
        if cluster is span and spread and spread[0]:
            value, wider = float(ratio.value[0]), _spans_as_one(ratio) ** 0.5
            low, high = (value + wider * (end - value) for end in (spread[0].low, spread[0].high))
            found[0] = Interval.between(low, high)
    by_span, by_replica = found
    if by_span is None:
        return None
    wider = by_replica is not None and by_replica.high - by_replica.low > by_span.high - by_span.low
    return (by_replica if by_replica and wider else by_span).within(1.0, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Expected:
    """Rows of a folder with what a reference accepts at the same depths of the same kinds."""

    rounds: NDArray[np.float64]
    """Rounds, counted at depth 1; 0 without a reference."""
    accepted: NDArray[np.float64]
    expected: NDArray[np.float64]
    noise: NDArray[np.float64]
    """Variance of the reference's rate as a multiple of that of the rows' own, times `expected`."""

    def ratio(self, cluster: Codes, column: Codes, columns: int) -> Ratio:
        """Return the ratio of the tokens to the expected ones, by column, over clusters."""
        shape = (int(cluster.max()) + 1, columns)
        at = cluster * columns + column

        def matrix(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return _sums_by_group(at, values, shape[0] * columns).reshape(shape)

        rounds = matrix(self.rounds)
        return ratio_of(rounds + matrix(self.accepted), rounds + matrix(self.expected))


def _expected(
    rollups: Rollups, own: NDArray[np.float64], other: tuple[NDArray[np.float64], ...]
) -> _Expected:
    """Return the rows with what a reference accepts; `own` are the rounds of the row's kind and
    depth on its side, and `other` those and their accepted ones of the reference."""
    rounds, accepted = other
    has_rounds = rounds > 0
    safe = np.where(has_rounds, rounds, 1.0)
    expected = np.where(has_rounds, rollups.rounds * accepted / safe, 0.0)
    return _Expected(
        rounds=np.where(has_rounds & (rollups.depth == 1), rollups.rounds, 0.0),
        accepted=np.where(has_rounds, rollups.accepted, 0.0),
        expected=expected,
        noise=np.where(has_rounds, expected * own / safe, 0.0),
    )


def beside_others(rollups: Rollups) -> tuple[PairedRatio | None, ...]:
    """Return the acceptance length of each replica over that of the others on the same kinds of
    rounds, with an interval at a level for all replicas together; None where others have too few
    rounds of its kinds."""
    n = len(rollups.replicas)
    if n < 2:
        return (None,) * n
    place = rollups.kind * (int(rollups.depth.max()) + 1) + rollups.depth
    _, pair = np.unique(rollups.replica * (int(place.max()) + 1) + place, return_inverse=True)
    values = (rollups.rounds, rollups.accepted)
    whole_sums = [_sums_by_group(place, value)[place] for value in values]
    own = [_sums_by_group(pair, value)[pair] for value in values]
    rest = tuple(all_rows - own_rows for all_rows, own_rows in zip(whole_sums, own, strict=True))
    rows = _expected(rollups, own[0], rest)
    ratio = rows.ratio(rollups.span, rollups.replica, n)
    first = np.where(rollups.depth == 1, rollups.rounds, 0.0)
    covered = _share(rows.rounds, first, rollups.replica, n)
    single_span = _spans_as_one(ratio)
    noise = _share(rows.noise, rows.expected, rollups.replica, n)
    error = _error(ratio) * np.sqrt(single_span * (1.0 + noise))
    usable = ratio.supported & (covered >= COVERED) & np.isfinite(error) & (ratio.value > 0)
    # The variance of healthy replicas beyond that of their spans, from the median absolute
    # deviation, which few sick ones do not move; 0 with few replicas.
    values, between = np.log(ratio.value[usable]), 0.0
    if len(values) >= FEWEST_FOR_SPREAD:
        spread = 1.4826 * float(np.median(np.abs(values - np.median(values))))
        between = max(0.0, spread**2 - float(np.median(np.square(error[usable]))))
    half = _quantile(ratio.df / single_span, max(int(usable.sum()), 1))
    half = half * np.sqrt(np.square(error) + between)
    spans = (ratio.share > 0).sum(axis=0)
    return tuple(
        _paired(ratio.value[at], half[at], int(spans[at])) if usable[at] else None
        for at in range(n)
    )


def length_ratio(first: Rollups, other: Rollups) -> PairedRatio | None:
    """Return the acceptance length of `other` over that of `first` on kinds of rounds that both
    have (all of KINDS but these), whatever model and drafter served them; None without enough of
    them. The interval is over spans of time, or over replicas if it is wider."""
    names: dict[tuple[str, ...], int] = {}
    deepest = int(max(first.depth.max(), other.depth.max())) + 1
    places = []
    for side in (first, other):
        number = [names.setdefault(kind[2:], len(names)) for kind in side.kinds]
        places.append(np.array(number)[side.kind] * deepest + side.depth)
    size = len(names) * deepest
    reference = tuple(
        _sums_by_group(places[0], value, size)[places[1]]
        for value in (first.rounds, first.accepted)
    )
    rows = _expected(other, _sums_by_group(places[1], other.rounds, size)[places[1]], reference)
    one = np.zeros(len(places[1]), np.int64)
    ratio = rows.ratio(other.span, one, 1)
    if _share(rows.rounds, np.where(other.depth == 1, other.rounds, 0.0), one, 1)[0] < COVERED:
        return None
    single_span = _spans_as_one(ratio)
    error = _error(ratio) * single_span**0.5
    by_replica = rows.ratio(other.replica, one, 1)
    both = min(len(first.replicas), len(other.replicas)) >= FEWEST_CLUSTERS
    if both and by_replica.supported[0]:
        error = np.fmax(error, _error(by_replica))
    error *= np.sqrt(1.0 + _share(rows.noise, rows.expected, one, 1))
    half = float((_quantile(ratio.df / single_span, 1) * error)[0])
    known = bool(ratio.supported[0]) and math.isfinite(half)
    value, spans = float(ratio.value[0]), int((ratio.share > 0).sum())
    return _paired(value, half if known else None, spans)


def _paired(value: float, half: float | None, spans: int) -> PairedRatio:
    ends = None
    if half is not None:
        ends = Interval.between(value * math.exp(-half), value * math.exp(half))
    return PairedRatio(value=float(value), interval=ends, pairs=spans)


def _share(
    some: NDArray[np.float64], of: NDArray[np.float64], column: Codes, columns: int
) -> NDArray[np.float64]:
    whole_sum = _sums_by_group(column, of, columns)
    return np.asarray(
        _sums_by_group(column, some, columns) / np.where(whole_sum > 0, whole_sum, np.inf)
    )


def _sums_by_group(
    column: Codes, values: NDArray[np.float64], columns: int = 0
) -> NDArray[np.float64]:
    return np.bincount(column, values, columns).astype(np.float64)


def _error(ratio: Ratio) -> NDArray[np.float64]:
    """Return the standard error of the ratio's logarithm."""
    return np.asarray(ratio.error / np.where(ratio.value > 0, ratio.value, np.nan))


def _spans_as_one(ratio: Ratio) -> float:
    """Return how many neighbouring spans count as one, at least 1: from the correlation of
    neighbours in all columns, less its bias (Kendall 1954)."""
    influence = np.nan_to_num(ratio.influence)
    squares, spans = float(np.square(influence).sum()), len(influence)
    correlation = float((influence[1:] * influence[:-1]).sum()) / squares if squares > 0 else 0.0
    correlation = min(max(correlation + (1 + 3 * correlation) / spans, 0.0), _MOST_ALIKE)
    return (1.0 + correlation) / (1.0 - correlation)


_MOST_ALIKE = 0.8
"""Largest correlation of neighbouring spans that is counted with: above it, spans are too short."""


def _quantile(df: NDArray[np.float64], tests: int) -> NDArray[np.float64]:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(df, 1.0), 1.0 - 0.025 / tests))
