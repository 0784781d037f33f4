"""What kinds of rows a run holds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.passes.views import table
from driftscope.analysis.query.chain_shape import AUX

if TYPE_CHECKING:
    import ibis.expr.types as ir

BY_HEAD = "head_mass"
OPTIONAL = ("sink_mass", "null_mass", *AUX, BY_HEAD)
"""Lists that a drafter may lack, or that may not have been asked for; files never leave them out
for following from others."""


@cache
def kinds_of_chains() -> ir.Table:
    """Chain lengths, layers and executions that occur, how many chains have them, and between
    which sampling rates."""
    rows = table("draft")
    kinds = rows.group_by("k", "layers", "execution")
    return kinds.aggregate(chains=rows.count(), low=rows.rate.min(), high=rows.rate.max())


@cache
def one_with(name: str) -> ir.Table:
    """A row that holds a list, if there is any: no engine reads on once it has one."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select("k").limit(1)


@cache
def captured_in(name: str) -> ir.Table:
    """The number of states in the list `name` of a row that has it, if there is any."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select(states=rows[name].length()).limit(1)


@cache
def kinds_of_steps() -> ir.Table:
    """Chain lengths of the steps that drafted."""
    steps = table("step")
    return steps.filter(steps.chains > 0).group_by("k").aggregate(rows=lambda t: t.count())


@cache
def lengths_of_rounds() -> ir.Table:
    """How many tokens rounds drafted."""
    rows = table("verify")
    return rows.filter(rows.drafted > 0).group_by("drafted").aggregate(rows=lambda t: t.count())
