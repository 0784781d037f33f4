"""Recorded chains by cluster of requests: sums of everything measured in them, and their queries.

There are two ways to sum. The careful one counts each element if it is a finite number, with a
weight sum of its own. The quick one assumes that all elements are finite, and needs half the sums;
its result shows whether they were, see `driftscope.analysis.figures.chains.finite_sums`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chain_shape import BY_HEAD, Elements, Shape
from driftscope.analysis.query.query_engine import Codes, Matrix, sums, whole
from driftscope.analysis.query.record_views import (
    IN_BUCKETS,
    PART,
    REQUEST,
    Derived,
    clusters,
    table,
)
from driftscope.analysis.statistics.ratio import Ratio, ratio_of, ratio_over
from driftscope.metrics import attention
from driftscope.metrics.attention import Array, finite, ratio, weight_of, weighted
from driftscope.vocabulary import BY_DEPTH, MASS_CLASSES, MASSES

if TYPE_CHECKING:
    import ibis.expr.types as ir

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
    """Sum the recorded chains of one file layout by cluster."""
    rows = deep_enough(shape).join(clusters(), REQUEST)
    mine = rows.mutate(weight=1.0 / rows.rate, **_even(rows, dict(derived), shape, careful))
    lists = Elements(mine, dict(derived), shape, careful=careful)
    weight = mine.weight if careful or shape.rate is None else 1.0 / shape.rate
    more: dict[str, Any] = {}
    if "even_sink" in mine.columns:
        more |= _mean("even_sink", 0, mine.even_sink, mine.weight)
    if BY_HEAD not in shape.absent:
        wanted = mine.k * mine.layers * mine.heads * len(MASS_CLASSES)
        more["bad_heads"] = (mine.head_mass.length() != wanted).fill_null(False).sum()
    return mine.group_by("cluster").aggregate(
        chains=mine.count(),
        weight=mine.weight.sum(),
        chunked=mine.chunked_prefill.fill_null(False).sum(),
        bad_rates=(~((mine.rate > 0) & (mine.rate <= 1)).fill_null(False)).sum(),
        **more,
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
        out[f"{name}_rows"] = lists.there(name).sum()
        out[f"{name}_misfits"] = (lists.length(name) != lists.wanted(name)).sum()
    return out


def _presence_in_all(lists: Elements, shape: Shape) -> dict[str, Any]:
    """Count the rows that have each list, and once the rows in which any list has the wrong
    length. A list that was left out is as long as one from which it follows."""
    import ibis

    stored = filter(lists.is_stored, shape.lists())
    misfit = (lists.length(name) != lists.wanted(name) for name in stored)
    rows = {f"{name}_rows": lists.number(name) for name in shape.lists()}
    return {**rows, "misfits": ibis.or_(ibis.literal(False), *misfit).sum()}


def _total(value: ir.NumericValue, weight: Weight) -> ir.NumericScalar:
    """Return the sum of all values times their weights; it takes half the time if all weights are
    equal."""
    return value.sum() * weight if isinstance(weight, float) else (value * weight).sum()


def _quick(lists: Elements, shape: Shape, weight: Weight) -> dict[str, Any]:
    """Return the numerators alone: if all rows have a list, its elements weigh as much as the
    rows."""
    return {
        numerator(name, index): _total(lists.at(name, index), weight)
        for name in shape.lists()
        for index in range(shape.width(name))
    }


def _careful(lists: Elements, shape: Shape, weight: ir.NumericColumn) -> dict[str, Any]:
    """Return the sums of each element, also by layer, and with several layers those of their mean
    per chain."""
    import ibis

    out: dict[str, Any] = {}
    for name in shape.lists():
        there = ibis.ifelse(lists.there(name), weight, ibis.null("float64"))
        out[f"{name}_weight"] = there.sum()
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


def _even(
    rows: ir.Table, derived: dict[str, str], shape: Shape, careful: bool
) -> dict[str, ir.FloatingValue]:
    """Return, by chain, the mass that even attention would give the sink set; null if the chain
    does not have the mass that it gave."""
    import ibis

    if {"self_mass", "sink_mass"} & set(shape.absent):
        return {}
    lists = Elements(rows, derived, shape, careful=careful)
    sink = attention.over_layers(lists.layers("sink_mass", 0))
    known = finite(sink) if careful else sink.notnull()
    visible = attention.visible_sink(rows.position, shape.sink_slots)
    even = attention.even_share(rows.position, visible)
    return {"even_sink": ibis.ifelse(known, even, ibis.null("float64"))}


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
        lists.there(name)
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
    there = ibis.or_(*(lists.there(name) for name in masses))
    least = ibis.least(*values)
    infinite = ibis.or_(*(value.isinf().fill_null(False) for value in values))
    return there & (infinite | least.isnull() | least.isnan())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mean:
    """A mean as numerator and denominator, [cells, width] each."""

    top: Matrix
    bottom: Matrix
    cluster: Codes | None = None
    """Cluster of each row, [rows]; None: each row is one."""
    crossed: Codes | None = None
    """Prompt of each row, if prompts and clusters cross; None if they do not."""

    def all(self) -> Array:
        """Return the mean over all cells, [width]; NaN where nothing finite was measured."""
        return ratio(self.top.sum(axis=0), self.bottom.sum(axis=0))

    def ratio(self, bottom: Matrix | None = None) -> Ratio:
        """Return the mean with its influences over clusters, [width]; with another denominator,
        [cells, width or 1], if one is given."""
        below = np.broadcast_to(self.bottom if bottom is None else bottom, self.top.shape)
        code = np.arange(len(self.top)) if self.cluster is None else self.cluster
        return ratio_over(ratio_of, (self.top, below), code, self.crossed)

    def of(self, rows: NDArray[np.bool_]) -> Mean:
        """Return the mean over the rows that a mask selects."""
        return Mean(
            top=self.top[rows],
            bottom=self.bottom[rows],
            cluster=None if self.cluster is None else self.cluster[rows],
            crossed=None if self.crossed is None else self.crossed[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """Sums over recorded chains by cell; `means` lacks a quantity that the drafter does not
    have."""

    depths: int
    """Number of depths of the figures, `Shape.depths`."""
    cell: Codes
    """Number of each cell, [cells], see `Sums.cells`."""
    chains: NDArray[np.int64]
    weight: Matrix
    """Number of chains that the recorded ones stand for: each counts 1 over the sampling rate at
    its time."""
    chunked: NDArray[np.int64]
    means: Mapping[str, Mean]
    """Means by list column, [clusters, its width]. Also `<mass>_mean` over several layers,
    `even_sink`, and `growth`, whose numerator is the RMS at the last depth and whose denominator is
    the RMS at depth 1."""

    def __len__(self) -> int:
        """Return the number of chains in all cells."""
        return int(self.chains.sum())

    def of(self, wanted: NDArray[np.bool_]) -> Chains:
        """Return the chains of the cells selected by `wanted`, indexed by number of cell."""
        mine = wanted[self.cell]
        return Chains(
            depths=self.depths,
            cell=self.cell[mine],
            chains=self.chains[mine],
            weight=self.weight[mine],
            chunked=self.chunked[mine],
            means={name: mean.of(mine) for name, mean in self.means.items()},
        )

    def by_layer(self, name: str) -> Array:
        """Return a mass averaged over chains, [K, layers]."""
        flat, depths = self.means[name].all(), self.depths
        return flat.reshape(depths, -1)

    def over_layers(self, name: str) -> Mean | None:
        """Return a mass averaged over layers, [clusters, K]; None if it was not recorded."""
        return self.means.get(f"{name}_mean", self.means.get(name))


def chains_of(
    table: pa.Table, shape: Shape, cells: Codes, clusters: Codes, crossed: Codes | None = None
) -> Chains:
    """Return the chains of a pass by cell; the pass may cover several layouts of files. `cells`,
    `clusters` and `crossed` are those of each request; the last are prompts that cross the
    clusters, which are left out of account if a cell has several requests."""
    number, at = np.unique(whole(table, "cluster"), return_inverse=True)
    cluster = _of_cells(cells, clusters)[number]
    alone = crossed is not None and len(np.unique(cells)) == len(cells)
    prompt = _of_cells(cells, crossed)[number] if crossed is not None and alone else None

    def add(name: str) -> Matrix:
        added = np.bincount(at, weights=sums(table, name), minlength=len(number))
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

    there = [name for name in shape.lists() if whole(table, f"{name}_rows").sum()]
    means = {name: mean(name, shape.width(name)) for name in there if shape.width(name)}
    if shape.layers > 1:
        means |= {
            f"{name}_mean": mean(f"{name}_mean", shape.depths) for name in there if name in MASSES
        }
    if "self_mass" in means and numerator("even_sink", 0) in table.column_names:
        means["even_sink"] = mean("even_sink", 1)
    if "fed_rms" in means:
        growth = (add("fed_last")[:, None], add("fed_first")[:, None])
        means["growth"] = Mean(top=growth[0], bottom=growth[1], cluster=cluster, crossed=prompt)
    return Chains(
        depths=shape.depths,
        cell=number,
        chains=add("chains").astype(np.int64),
        weight=add("weight"),
        chunked=add("chunked").astype(np.int64),
        means=means,
    )


def _of_cells(cells: Codes, codes: Codes) -> Codes:
    """Return the code of each cell, [cells], for `codes` of each request."""
    out = np.zeros(int(cells.max(initial=-1)) + 1, dtype=np.int64)
    out[cells] = codes
    return out


def finite_sums(table: pa.Table, shape: Shape) -> pa.Table | None:
    """Return the result of the careful pass, computed from a quick pass; None if some element may
    not be a finite number or may be missing from its list, or if some row may lack a list."""
    width = {name: shape.width(name) for name in shape.lists()}
    numerators = [numerator(name, i) for name, n in width.items() for i in range(n)]
    rows = [whole(table, f"{name}_rows") for name in width]
    chains = whole(table, "chains")
    if (
        not all(np.isfinite(sums(table, name)).all() for name in numerators)
        or whole(table, "misfits").any()
        or any(((row != chains) & (row != 0)).any() for row in rows)
    ):
        return None
    out = {name: table.column(name) for name in table.column_names if name != "misfits"}
    out |= {f"{name}_misfits": pa.array(np.zeros_like(chains)) for name in width}
    weight = sums(table, "weight")
    for (name, n), there in zip(width.items(), rows, strict=True):
        out[f"{name}_weight"] = pa.array(np.where(there > 0, weight, 0.0))
        out |= {denominator(name, i): out[f"{name}_weight"] for i in range(n)}
    for name in shape.masses() if shape.layers > 1 else ():
        for depth in range(shape.depths):
            out[denominator(f"{name}_mean", depth)] = out[f"{name}_weight"]
            flat = range(depth * shape.layers, (depth + 1) * shape.layers)
            layers = [sums(table, numerator(name, i)) for i in flat]
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
        for weight in [sums(table, f"{name}_weight")]
        if any(
            not np.array_equal(sums(table, denominator(name, i)), weight)
            for i in range(shape.width(name))
        )
    )
