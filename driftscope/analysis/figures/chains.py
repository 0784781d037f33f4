"""Recorded chains: their shape and lists, checks that all rows belong together, and sums by request
of everything measured in them. Everything after the checks may rely on them.

There are two ways to sum. The careful one counts each element if it is a finite number, with a
weight sum of its own. The quick one assumes that all elements are finite, and needs half the sums;
its result shows whether they were, see `finite_sums`."""

from __future__ import annotations

import functools
import operator
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.requests import Units, requests_that_finished
from driftscope.analysis.query.query_engine import Codes, Matrix, rows_of, sums_column, whole
from driftscope.analysis.query.record_views import (
    IN_BUCKETS,
    NUMBERED,
    PART,
    REQUEST,
    Derived,
    Tables,
    chains_too_long,
    numbered,
    table,
    two_drafters,
)
from driftscope.analysis.statistics.ratio import Ratio, ratio_of, ratio_over
from driftscope.errors import DamagedTraceError, MixedTraceError, NoDataError
from driftscope.metrics import attention
from driftscope.metrics.attention import Array, finite, ratio, weight_of, weighted
from driftscope.vocabulary import AUX, BY_DEPTH, DISTANCE_MASS, MASSES, Execution

if TYPE_CHECKING:
    import ibis.expr.types as ir


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths of a run's chains, and contents of their lists."""

    k: int
    """Number of tokens of the longest chain."""
    ks: tuple[int, ...]
    """Chain lengths that the run asked for, ascending; there are several if K follows the batch
    size or changed while the server ran."""
    shorter: tuple[int, ...] = ()
    """Numbers of tokens below `k` that rounds drafted, ascending. Close to a length limit a round
    drafts fewer tokens than K."""
    depths: int
    """Number of depths for which figures of chains are made: `k` in a run of one K. In a run of
    several K, the figures use only chains with at least this length, so that every depth is
    compared over the same chains."""
    layers: int
    """Number of drafter layers with attention, at least 1."""
    aux: int
    """Number of captured target layers."""
    sink_slots: tuple[int, ...]
    sinkless: bool
    """Whether the probe looked for a sink and found none, so that there is no sink class."""
    absent: tuple[str, ...] = ()
    """Lists that no row has."""
    executions: tuple[str, ...] = ()
    """Executions of the drafter over all recorded chains that name one."""
    rate: float | None = None
    """Sampling rate of all chains; None if it changed, or is not above 0 and at most 1."""

    @property
    def mixed(self) -> bool:
        """Whether the run has chains of several K."""
        return len(self.ks) > 1

    def width(self, name: str) -> int:
        """Return the number of elements of the list column `name` that figures use."""
        return self.aux if name in AUX else self.depths * self.per_depth(name)

    def per_depth(self, name: str) -> int:
        """Return the number of elements of the list column `name` per depth; it must not be one of
        AUX."""
        return self.layers if name in MASSES else 1

    def masses(self) -> tuple[str, ...]:
        """Return the classes of which some row may have a mass."""
        return tuple(name for name in MASSES if name not in self.absent)

    def lists(self) -> tuple[str, ...]:
        """Return the lists that some row may have."""
        return tuple(name for name in (*MASSES, *BY_DEPTH, *AUX) if name not in self.absent)


Index: TypeAlias = "int | ir.IntegerColumn"
"""Index of an element: one for all rows, or one per row."""


class Elements:
    """Access to the lists of `table`, which lacks the `derived` ones; see
    `driftscope.trace.segments`.

    Unless `careful`, every element that exists is assumed to be a finite number.
    """

    def __init__(
        self, table: ir.Table, derived: dict[str, str], shape: Shape, *, careful: bool = True
    ) -> None:
        self._table, self._derived, self._shape = table, derived, shape
        self._careful = careful
        self._others = [name for name in shape.masses() if name != "generated_mass"]

    def is_stored(self, name: str) -> bool:
        """Return whether the list is a column of its own."""
        return name not in self._derived

    def has_list(self, name: str) -> ir.BooleanColumn:
        """Return whether the row has the list."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.or_(*(self._table[other].notnull() for other in self._others))
        return self._table[self._source(name)].notnull()

    def number(self, name: str) -> ir.IntegerScalar:
        """Return how many rows have the list."""
        if name == "generated_mass" and name in self._derived:
            return self.has_list(name).sum()
        return self._table[self._source(name)].count()

    def length(self, name: str) -> ir.IntegerColumn:
        """Return the length of the list, null if the row has none. A list that was left out is as
        long as the list from which it follows."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.coalesce(*(self._table[other].length() for other in self._others))
        return self._table[self._source(name)].length()

    def expected_length(self, name: str) -> ir.IntegerColumn | int:
        """Return the length that the list should have, which depends on the depths of the row's own
        chain."""
        if name in AUX or not self._shape.mixed:
            return self._shape.width(name)
        return self._table.k * self._shape.per_depth(name)

    def at(self, name: str, index: Index) -> ir.FloatingColumn:
        """Return the element at `index`, from 0; null if the row has no such list or element."""
        if name not in self._derived:
            # Spark accepts no 64-bit list index.
            place = index if isinstance(index, int) else index.cast("int32")
            return self._table[name][place].cast("float64")
        if name == "generated_mass":
            import ibis

            others = [self._table[other][index].cast("float64") for other in self._others]
            if not self._careful:  # a row without the list has null or 0 here, which adds nothing
                return ibis.greatest(1.0 - functools.reduce(operator.add, others), 0.0)
            zero = [ibis.ifelse(other.isnull() | other.isnan(), 0.0, other) for other in others]
            left = ibis.greatest(1.0 - sum(zero), 0.0)
            return ibis.ifelse(self.has_list("generated_mass"), left, ibis.null("float64"))
        if name == "in_rms":
            import ibis

            # The fc's output at depth 1, then the state fed from the depth before.
            if not isinstance(index, int) or index:
                return self.at("fed_rms", index - 1)
            fc = self._table.fc_rms.cast("float32").cast("float64")
            return ibis.ifelse(self.has_list("in_rms"), fc, ibis.null("float64"))
        return self.at(self._source(name), index)

    def layers(self, name: str, depth: Index) -> list[ir.FloatingColumn]:
        """Return the elements of a mass at one depth (from 0), one per layer."""
        start = depth * self._shape.layers
        return [self.at(name, start + layer) for layer in range(self._shape.layers)]

    def _source(self, name: str) -> str:
        """Return the stored column from which `name` follows and which has the same length."""
        while name in self._derived:
            name = self._derived[name]
        return name


OPTIONAL = ("sink_mass", "null_mass", *AUX, DISTANCE_MASS)
"""Lists that a drafter may lack, or whose recording may be switched off; files never leave them out
because they follow from others."""


@cache
def kinds_of_chains() -> ir.Table:
    """Return the chain lengths, layers and executions that occur, with their number of chains and
    the lowest and highest sampling rate."""
    rows = table("draft")
    kinds = rows.group_by("k", "layers", "execution")
    return kinds.aggregate(chains=rows.count(), low=rows.rate.min(), high=rows.rate.max())


@cache
def one_with(name: str) -> ir.Table:
    """Return one row that has a list, if there is any; an engine stops reading when it has found
    one."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select("k").limit(1)


@cache
def kinds_of_steps() -> ir.Table:
    """Return the chain lengths of the steps that drafted."""
    steps = table("step")
    return steps.filter(steps.chains > 0).group_by("k").aggregate(rows=lambda t: t.count())


@cache
def lengths_of_rounds() -> ir.Table:
    """Return the numbers of tokens of which rounds verified a draft."""
    rows = table("verify")
    return rows.filter(rows.verified > 0).group_by("verified").aggregate(rows=lambda t: t.count())


@cache
def captured_in(name: str) -> ir.Table:
    """Return the number of states in the list `name`, from one row that has it, if there is any."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select(states=rows[name].length()).limit(1)


def captured_states(tables: Tables) -> int:
    """Return the length of the lists in `AUX`: the number of layers that the manifest names or, if
    the engine does not tell which layers it captures, that of the chains' states."""
    if tables.manifest.aux_layers:
        return len(tables.manifest.aux_layers)
    lengths = (whole(tables.engine.rows(captured_in(name)), "states") for name in AUX)
    return max((length for column in lengths for length in column.tolist()), default=0)


ENOUGH_CHAINS = 50
"""Number of chains that must reach a depth for it to be shown in a run of several K: with fewer,
the standard error of a mean is more than a seventh of the spread between chains."""


def shape_of(tables: Tables) -> Shape:
    """Return the shape of a run's chains, which may have several K.

    If K follows the batch size, or changes while the server runs, that is still one run. Raises
    MixedTraceError for chains longer than the run was configured for, and for chains of drafters
    with different numbers of layers: such files come from two runs.
    """
    manifest, rows = tables.manifest, tables.engine.rows
    kinds = rows(kinds_of_chains())
    by_k: Counter[int] = Counter()
    for length, number in zip(whole(kinds, "k"), whole(kinds, "chains"), strict=True):
        by_k[int(length)] += int(number)
    enough = min(ENOUGH_CHAINS, by_k.total() / 2)
    reached = [n for n in by_k if sum(by_k[longer] for longer in by_k if longer >= n) >= enough]
    rates = {rate for end in ("low", "high") for rate in kinds.column(end).to_pylist()}
    rate = rates.pop() if len(rates) == 1 else None
    asked = {*by_k, *whole(rows(kinds_of_steps()), "k").tolist()}
    verified = set(whole(rows(lengths_of_rounds()), "verified").tolist())
    ks = tuple(sorted(asked)) or (manifest.k,)
    k = max(*ks, *verified) if verified else ks[-1]
    if k > manifest.k:
        raise MixedTraceError(chains_too_long(tables, manifest.k, k))
    layers = sorted(set(whole(kinds, "layers").tolist()))
    if len(layers) > 1:
        raise MixedTraceError(two_drafters(tables, layers))
    return Shape(
        k=k,
        ks=ks,
        shorter=tuple(sorted(n for n in verified if n < k)),
        depths=max(reached) if len(ks) > 1 and by_k else k,
        layers=max(layers[0], 1) if layers else 1,
        aux=captured_states(tables),
        sink_slots=tuple(manifest.sink_slots),
        sinkless=manifest.sinkless,
        absent=tuple(name for name in OPTIONAL if not rows(one_with(name)).num_rows),
        executions=tuple(sorted(set(kinds.column("execution").to_pylist()) - {Execution.UNSEEN})),
        rate=rate if rate and 0 < rate <= 1 else None,
    )


def check_chains(tables: Tables, chains: pa.Table, shape: Shape) -> None:
    """Raise DamagedTraceError for rates and lists that no writer produces.

    Per-depth lists have as many elements as the chain has tokens; masses have that many times the
    drafter's layers.
    """
    if whole(chains, "bad_rates").sum():
        raise DamagedTraceError(
            f"{tables.path}: draft rows whose sampling rate is not above 0 and at most 1; "
            "the run's files are damaged"
        )
    for name in shape.lists():
        if whole(chains, f"{name}_misfits").sum():
            wanted = str(shape.width(name))
            if shape.mixed and name not in AUX:
                numbers = shape.per_depth(name)
                wanted = "K" if numbers == 1 else f"K times {numbers}"
            raise DamagedTraceError(
                f"{tables.path}: draft rows whose {name} is not {wanted} long; "
                "the run's files are damaged or not from one run"
            )


def check_rounds(tables: Tables, rounds: pa.Table) -> None:
    """Raise DamagedTraceError for impossible rounds, and NoDataError if there are no rounds."""
    if whole(rounds, "wrong").sum():
        raise DamagedTraceError(
            f"{tables.path}: verify rows with more tokens accepted than verified; "
            "the run's files are damaged or not from one run"
        )
    if not whole(rounds, "rounds").sum() and tables.conditions:
        raise NoDataError(
            f"{tables.path}: no round in it meets {' and '.join(map(str, tables.conditions))}; "
            f"`driftscope analyze {shlex.quote(str(tables.path))}` says what is in it"
        )
    if not whole(rounds, "rounds").sum():
        finished = tables.engine.rows(requests_that_finished()).num_rows
        undrafted = whole(rounds, "undrafted").sum()
        advice = (
            "send requests to the server while the probe is on, and see its log for why the "
            "drafter drafts nothing"
        )
        raise NoDataError(
            f"{tables.path}: no round in it ({finished} requests, {undrafted} "
            f"steps without a draft); {'; '.join(tables.problems) or advice}"
        )


Weight: TypeAlias = "ir.NumericColumn | float"
"""Number of chains that a recorded chain stands for: a column, or one number for all."""


def numerator(name: str, index: int) -> str:
    """Return the column name of a mean's numerator."""
    return f"{name}_{index}_top"


def denominator(name: str, index: int) -> str:
    """Return the column name of a mean's denominator."""
    return f"{name}_{index}_bottom"


@cache
def chains(shape: Shape, derived: Derived, careful: bool) -> ir.Table:
    """Sum the recorded chains of one file layout by request."""
    rows = deep_enough(shape).join(numbered(NUMBERED), REQUEST)
    rated = rows.mutate(weight=1.0 / rows.rate)
    lists = Elements(rated, dict(derived), shape, careful=careful)
    weight = rated.weight if careful or shape.rate is None else 1.0 / shape.rate
    return rated.group_by("cluster").aggregate(
        chains=rated.count(),
        weight=rated.weight.sum(),
        chunked=rated.chunked_prefill.fill_null(False).sum(),
        bad_rates=(~((rated.rate > 0) & (rated.rate <= 1)).fill_null(False)).sum(),
        **(_presence if careful else _presence_in_all)(lists, shape),
        **(_careful if careful else _quick)(lists, shape, weight),
    )


def deep_enough(shape: Shape) -> ir.Table:
    """Return the chains of one file layout that figures by depth use."""
    rows = table(PART, "draft")
    return rows.filter(rows.k >= shape.depths) if shape.mixed else rows


@cache
def shallower(shape: Shape) -> ir.Table:
    """Count the chains that are too short for figures by depth, the chains that they stand for, and
    those among them whose cache is in doubt."""
    rows = table("draft")
    rows = rows.filter(rows.k < shape.depths)
    return rows.aggregate(
        chains=rows.count(),
        weight=(1.0 / rows.rate).sum(),
        chunked=rows.chunked_prefill.fill_null(False).sum(),
    )


@cache
def chains_in_buckets(shape: Shape, derived: Derived, by_k: bool) -> ir.Table:
    """Sum recorded chains by bucket, for the drift of a segment.

    The last depth is the shape's or, if the run is split `by_k`, that of the bucket's own chains.
    """
    rows = table(f"{PART}_{IN_BUCKETS}", "draft", bucket="string")
    if shape.mixed and not by_k:
        rows = rows.filter(rows.k >= shape.depths)
    lists = Elements(rows, dict(derived), shape, careful=True)
    weight = 1.0 / rows.rate
    last = rows.k - 1 if by_k else shape.depths - 1
    out = _mean("fed_rms", 0, lists.at("fed_rms", 0), weight)
    out |= _mean("fed_rms_last", 0, lists.at("fed_rms", last), weight)
    if "self_mass" not in shape.absent:
        own = attention.over_layers(lists.layers("self_mass", last))
        out |= _mean("self_mass_last", 0, own, weight)
    return rows.group_by("bucket").aggregate(chains=rows.count(), **out)


def _presence(lists: Elements, shape: Shape) -> dict[str, Any]:
    """Count the rows that have each list, and the rows in which it has the wrong length."""
    out: dict[str, Any] = {}
    for name in shape.lists():
        out[f"{name}_rows"] = lists.has_list(name).sum()
        out[f"{name}_misfits"] = (lists.length(name) != lists.expected_length(name)).sum()
    return out


def _presence_in_all(lists: Elements, shape: Shape) -> dict[str, Any]:
    """Count the rows that have each list, and once the rows in which any list has the wrong
    length. A list that was left out is as long as one from which it follows."""
    import ibis

    stored = filter(lists.is_stored, shape.lists())
    misfit = (lists.length(name) != lists.expected_length(name) for name in stored)
    rows = {f"{name}_rows": lists.number(name) for name in shape.lists()}
    return {**rows, "misfits": ibis.or_(ibis.literal(False), *misfit).sum()}


def _quick(lists: Elements, shape: Shape, weight: Weight) -> dict[str, Any]:
    """Return the numerators alone: if all rows have a list, its elements weigh as much as the
    rows."""
    out: dict[str, Any] = {}
    for name in shape.lists():
        for index in range(shape.width(name)):
            value = lists.at(name, index)
            # It takes half the time if all weights are equal.
            even = isinstance(weight, float)
            out[numerator(name, index)] = value.sum() * weight if even else (value * weight).sum()
    return out


def _careful(lists: Elements, shape: Shape, weight: ir.NumericColumn) -> dict[str, Any]:
    """Return the sums of each element, also by layer, and with several layers those of their mean
    per chain."""
    import ibis

    out: dict[str, Any] = {}
    for name in shape.lists():
        weight_if_stored = ibis.ifelse(lists.has_list(name), weight, ibis.null("float64"))
        out[f"{name}_weight"] = weight_if_stored.sum()
        for index in range(shape.width(name)):
            out |= _mean(name, index, lists.at(name, index), weight)
    for name in shape.masses() if shape.layers > 1 else ():
        for depth in range(shape.depths):
            mean = attention.over_layers(lists.layers(name, depth))
            out |= _mean(f"{name}_mean", depth, mean, weight)
    first, last = lists.at("fed_rms", 0), lists.at("fed_rms", shape.depths - 1)
    good = finite(first) & finite(last)
    for name, value in (("fed_first", first), ("fed_last", last)):
        out[name] = ibis.ifelse(good, value * weight, ibis.null("float64")).sum()
    return out


def _mean(
    name: str, index: int, value: ir.FloatingColumn, weight: ir.NumericColumn
) -> dict[str, Any]:
    return {
        numerator(name, index): weighted(value, weight),
        denominator(name, index): weight_of(value, weight),
    }


@cache
def broken(shape: Shape, derived: Derived, taken: tuple[str, ...]) -> ir.Table:
    """Count the chains that contain a value that is not a finite number but should be.

    A class of slots that does not apply, or a quantity that was not recorded, does not count: among
    the masses `taken` in the run, at least one class must have a number at every depth and layer,
    and none may be infinite. Rows are examined closely only if the sum of some list is not finite.
    """
    import ibis

    rows = deep_enough(shape)
    states = [name for name in BY_DEPTH if name in taken]
    masses = [name for name in MASSES if name in taken]
    lists = Elements(rows, dict(derived), shape)
    kept = {name for name in (*states, *masses, "fc_rms") if name not in dict(derived)}
    suspect = [rows[name] if name == "fc_rms" else rows[name].sums() for name in sorted(kept)]
    rows = rows.filter(ibis.or_(*(~finite(value).fill_null(True) for value in suspect)))
    lists = Elements(rows, dict(derived), shape)
    wrong = [
        lists.has_list(name)
        & ibis.or_(*(~finite(lists.at(name, at)).fill_null(True) for at in range(shape.depths)))
        for name in states
    ]
    wrong += [_broken_masses(lists, masses, index) for index in range(shape.width(MASSES[0]))]
    return rows.aggregate(chains=ibis.or_(ibis.literal(False), *wrong).sum())


def _broken_masses(lists: Elements, masses: list[str], index: int) -> ir.BooleanValue:
    """Return whether the masses at one depth and layer are broken. NaN sorts above all numbers, so
    the least of several is NaN only if all are."""
    import ibis

    if not masses:
        return ibis.literal(False)
    values = [lists.at(name, index) for name in masses]
    any_stored = ibis.or_(*(lists.has_list(name) for name in masses))
    least = ibis.least(*values)
    infinite = ibis.or_(*(value.isinf().fill_null(False) for value in values))
    return any_stored & (infinite | least.isnull() | least.isnan())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mean:
    """A mean as numerator and denominator, [rows, width] each."""

    top: Matrix
    bottom: Matrix
    cluster: Codes | None = None
    """Cluster of each row, [rows]; None: each row is one."""
    crossed: Codes | None = None
    """Prompt of each row, if prompts and clusters cross; None if they do not."""

    def all(self) -> Array:
        """Return the mean over all rows, [width]; NaN where nothing finite was measured."""
        return ratio(self.top.sum(axis=0), self.bottom.sum(axis=0))

    def ratio(self, bottom: Matrix | None = None) -> Ratio:
        """Return the mean with its influences over clusters, [width]; with another denominator,
        [rows, width or 1], if one is given."""
        below = np.broadcast_to(self.bottom if bottom is None else bottom, self.top.shape)
        code = np.arange(len(self.top)) if self.cluster is None else self.cluster
        return ratio_over(ratio_of, (self.top, below), code, self.crossed)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """Sums over recorded chains by request; `means` lacks a quantity that the drafter does not
    have."""

    depths: int
    """Number of depths of the figures, `Shape.depths`."""
    request: Codes
    """Request of each row, [rows]."""
    chains: NDArray[np.int64]
    weight: Matrix
    """Number of chains that the recorded ones stand for: each counts 1 over the sampling rate at
    its time."""
    chunked: NDArray[np.int64]
    means: Mapping[str, Mean]
    """Means by list column, [clusters, its width]. Also `<mass>_mean` over several layers, and
    `growth`, whose numerator is the RMS at the last depth and whose denominator is the RMS at depth
    1."""

    def __len__(self) -> int:
        """Return the number of chains of all requests."""
        return int(self.chains.sum())

    def of(self, wanted: NDArray[np.bool_]) -> Chains:
        """Return the chains of the requests that `wanted`, [requests], selects."""
        chosen = wanted[self.request]
        means = {name: rows_of(mean, chosen) for name, mean in self.means.items()}
        return replace(rows_of(self, chosen), means=means)

    def by_layer(self, name: str) -> Array:
        """Return a mass averaged over chains, [K, layers]."""
        flat, depths = self.means[name].all(), self.depths
        return flat.reshape(depths, -1)

    def over_layers(self, name: str) -> Mean | None:
        """Return a mass averaged over layers, [clusters, K]; None if it was not recorded."""
        return self.means.get(f"{name}_mean", self.means.get(name))


def chains_of(table: pa.Table, shape: Shape, units: Units) -> Chains:
    """Return the chains of a pass by request; the pass may cover several layouts of files. `units`
    are those of all requests."""
    number, at = np.unique(whole(table, "cluster"), return_inverse=True)
    cluster = units.unit[number]
    prompt = None if units.crossed is None else units.crossed[number]

    def add(name: str) -> Matrix:
        added = np.bincount(at, weights=sums_column(table, name), minlength=len(number))
        return np.asarray(added, dtype=np.float64)

    def mean(name: str, width: int) -> Mean:
        numerators = [add(numerator(name, i)) for i in range(width)]
        denominators = [add(denominator(name, i)) for i in range(width)]
        return Mean(
            top=np.stack(numerators, axis=1),
            bottom=np.stack(denominators, axis=1),
            cluster=cluster,
            crossed=prompt,
        )

    stored = [name for name in shape.lists() if whole(table, f"{name}_rows").sum()]
    means = {name: mean(name, shape.width(name)) for name in stored if shape.width(name)}
    if shape.layers > 1:
        means |= {
            f"{name}_mean": mean(f"{name}_mean", shape.depths) for name in stored if name in MASSES
        }
    if "fed_rms" in means:
        growth = (add("fed_last")[:, None], add("fed_first")[:, None])
        means["growth"] = Mean(top=growth[0], bottom=growth[1], cluster=cluster, crossed=prompt)
    return Chains(
        depths=shape.depths,
        request=number,
        chains=add("chains").astype(np.int64),
        weight=add("weight"),
        chunked=add("chunked").astype(np.int64),
        means=means,
    )


def finite_sums(table: pa.Table, shape: Shape) -> pa.Table | None:
    """Return the result of the careful pass, computed from a quick pass; None if some element may
    not be a finite number or may be missing from its list, or if some row may lack a list."""
    width = {name: shape.width(name) for name in shape.lists()}
    numerators = [numerator(name, i) for name, n in width.items() for i in range(n)]
    rows = [whole(table, f"{name}_rows") for name in width]
    chains = whole(table, "chains")
    if (
        not all(np.isfinite(sums_column(table, name)).all() for name in numerators)
        or whole(table, "misfits").any()
        or any(((row != chains) & (row != 0)).any() for row in rows)
    ):
        return None
    out = {name: table.column(name) for name in table.column_names if name != "misfits"}
    out |= {f"{name}_misfits": pa.array(np.zeros_like(chains)) for name in width}
    weight = sums_column(table, "weight")
    for (name, n), stored in zip(width.items(), rows, strict=True):
        out[f"{name}_weight"] = pa.array(np.where(stored > 0, weight, 0.0))
        out |= {denominator(name, i): out[f"{name}_weight"] for i in range(n)}
    for name in shape.masses() if shape.layers > 1 else ():
        for depth in range(shape.depths):
            out[denominator(f"{name}_mean", depth)] = out[f"{name}_weight"]
            flat = range(depth * shape.layers, (depth + 1) * shape.layers)
            layers = [sums_column(table, numerator(name, i)) for i in flat]
            out[numerator(f"{name}_mean", depth)] = pa.array(np.mean(layers, axis=0))
    if width.get("fed_rms"):  # otherwise no chain has a depth, or none has the list
        out["fed_first"] = table.column(numerator("fed_rms", 0))
        out["fed_last"] = table.column(numerator("fed_rms", shape.depths - 1))
    return pa.table(out)


def doubtful(table: pa.Table, shape: Shape) -> tuple[str, ...]:
    """Return the lists with an element that is present but not a finite number: its weight is
    missing from the element's denominator. Sums over the same rows in the same order are equal to
    the bit."""
    return tuple(
        name
        for name in shape.lists()
        for weight in [sums_column(table, f"{name}_weight")]
        if any(
            not np.array_equal(sums_column(table, denominator(name, i)), weight)
            for i in range(shape.width(name))
        )
    )
