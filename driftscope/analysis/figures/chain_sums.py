"""Sums over recorded chains, by cluster of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chain_shape import Shape
from driftscope.analysis.passes.chains import denominator, numerator
from driftscope.analysis.query.column_arrays import Codes, Matrix, sums, whole
from driftscope.analysis.statistics.clusters import ratio_over
from driftscope.analysis.statistics.intervals.cluster_ratio import Ratio, ratio_of
from driftscope.metrics.attention import Array, ratio
from driftscope.vocabulary import MASSES


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
            means={name: each.of(mine) for name, each in self.means.items()},
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
        or any(((each != chains) & (each != 0)).any() for each in rows)
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
