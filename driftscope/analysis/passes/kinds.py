"""Passes that find which kinds of rows a run contains."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from driftscope.analysis.query.record_views import table
from driftscope.vocabulary import AUX, DISTANCE_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

BY_HEAD = "head_mass"
OPTIONAL = ("sink_mass", "null_mass", *AUX, BY_HEAD, DISTANCE_MASS)
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
def captured_in(name: str) -> ir.Table:
    """Return the number of states in the list `name`, from one row that has it, if there is any."""
    rows = table("draft")
    return rows.filter(rows[name].notnull()).select(states=rows[name].length()).limit(1)


@cache
def kinds_of_steps() -> ir.Table:
    """Return the chain lengths of the steps that drafted."""
    steps = table("step")
    return steps.filter(steps.chains > 0).group_by("k").aggregate(rows=lambda t: t.count())


@cache
def lengths_of_rounds() -> ir.Table:
    """Return the numbers of tokens that rounds drafted."""
    rows = table("verify")
    return rows.filter(rows.drafted > 0).group_by("drafted").aggregate(rows=lambda t: t.count())
