"""Passes over recorded chains by cluster of requests: sums of everything measured in them.

There are two ways to sum. The careful one counts each element if it is a finite number, with a
weight sum of its own. The quick one assumes that all elements are finite, and needs half the sums;
its result shows whether they were, see `driftscope.analysis.figures.chain_sums.finite_sums`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from driftscope.analysis.figures.chain_shape import BY_HEAD, Elements, Shape
from driftscope.analysis.query.record_views import (
    IN_BUCKETS,
    PART,
    REQUEST,
    Derived,
    clusters,
    table,
)
from driftscope.metrics import attention
from driftscope.metrics.attention import finite, weight_of, weighted
from driftscope.vocabulary import MASS_CLASSES

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
    return mine.group_by("cluster").aggregate(
        chains=mine.count(),
        weight=mine.weight.sum(),
        chunked=mine.chunked_prefill.fill_null(False).sum(),
        bad_rates=(~((mine.rate > 0) & (mine.rate <= 1)).fill_null(False)).sum(),
        **_bad_heads(mine, shape),
        **(_presence if careful else _presence_in_all)(lists, shape),
        **(_careful if careful else _quick)(lists, shape, weight),
        **(_even_sink if careful else _quick_even_sink)(mine, weight),
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


def _bad_heads(rows: ir.Table, shape: Shape) -> dict[str, Any]:
    """Count the rows whose masses by head do not fit their number of heads."""
    if BY_HEAD in shape.absent:
        return {}
    wanted = rows.k * rows.layers * rows.heads * len(MASS_CLASSES)
    return {"bad_heads": (rows.head_mass.length() != wanted).fill_null(False).sum()}


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


def _even_sink(rows: ir.Table, weight: ir.NumericColumn) -> dict[str, Any]:
    return _mean("even_sink", 0, rows.even_sink, weight) if "even_sink" in rows.columns else {}


def _quick_even_sink(rows: ir.Table, weight: Weight) -> dict[str, Any]:
    import ibis

    if "even_sink" not in rows.columns:
        return {}
    there = ibis.ifelse(rows.even_sink.notnull(), 1.0, ibis.null("float64"))
    return {
        numerator("even_sink", 0): _total(rows.even_sink, weight),
        denominator("even_sink", 0): _total(there, weight),
    }


def _mean(
    name: str, index: int, value: ir.FloatingColumn, weight: ir.NumericColumn
) -> dict[str, Any]:
    return {
        numerator(name, index): weighted(value, weight),
        denominator(name, index): weight_of(value, weight),
    }
