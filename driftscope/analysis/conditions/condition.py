"""Conditions on rows: what --where takes, in a language of its own.

It looks like SQL, and nothing of it gets into a query as it was written: the text is parsed to one
expression over `columns.COLUMNS`, the expression is checked, and engines are given an Ibis
expression that is built anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from driftscope.analysis.conditions.columns import Names
from driftscope.analysis.conditions.errors import printable
from driftscope.analysis.conditions.expression import truth_of
from driftscope.analysis.conditions.tree import column_of, tree_of

if TYPE_CHECKING:
    import ibis.expr.types as ir


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that was checked; made by `condition_of`."""

    text: str
    """The condition in the user's own words."""
    tree: exp.Expression = field(repr=False, compare=False)

    @property
    def names(self) -> Names:
        """The columns that it names."""
        return frozenset(column_of(node) for node in self.tree.find_all(exp.Column))

    def __str__(self) -> str:
        return printable(self.text)

    def on(self, rows: ir.Table) -> ir.BooleanValue:
        """Return whether each of `rows`, which have the columns that it names, meets it."""
        return truth_of(self.tree, rows)


def condition_of(text: str) -> Condition:
    """Return the condition that a text says. Raises UsageError, which names the place."""
    return Condition(text=text, tree=tree_of(text))
