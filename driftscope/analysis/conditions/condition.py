"""Conditions on rows, as given to --where, in a language of their own.

The language looks like SQL, but no part of the text enters a query as it was written: the text is
parsed to one expression over `columns.COLUMNS`, the expression is checked, and engines get an Ibis
expression that is built from it.
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
    """One checked condition; made by `condition_of`."""

    text: str
    """Text of the condition as the user wrote it."""
    tree: exp.Expression = field(repr=False, compare=False)

    @property
    def names(self) -> Names:
        """Columns that the condition names."""
        return frozenset(column_of(node) for node in self.tree.find_all(exp.Column))

    def __str__(self) -> str:
        return printable(self.text)

    def on(self, rows: ir.Table) -> ir.BooleanValue:
        """Return whether each of `rows` meets the condition; `rows` must have the columns that it
        names."""
        return truth_of(self.tree, rows)


def condition_of(text: str) -> Condition:
    """Parse and check a condition. Raises UsageError, which names the place."""
    return Condition(text=text, tree=tree_of(text))
