"""Elements of the list columns of draft rows, including columns that a sealed file leaves out."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, TypeAlias

from driftscope.analysis.query.chain_shape import Shape
from driftscope.vocabulary import AUX

if TYPE_CHECKING:
    import ibis.expr.types as ir

Index: TypeAlias = "int | ir.IntegerColumn"
"""Index of an element: one for all rows, or one per row."""


class Elements:
    """Access to the lists of `table`, which lacks the `derived` ones; see
    `driftscope.trace.format.derived_columns`.

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

    def there(self, name: str) -> ir.BooleanColumn:
        """Return whether the row has the list."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.or_(*(self._table[each].notnull() for each in self._others))
        return self._table[self._source(name)].notnull()

    def number(self, name: str) -> ir.IntegerScalar:
        """Return how many rows have the list."""
        if name == "generated_mass" and name in self._derived:
            return self.there(name).sum()
        return self._table[self._source(name)].count()

    def length(self, name: str) -> ir.IntegerColumn:
        """Return the length of the list, null if the row has none. A list that was left out is as
        long as the list from which it follows."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.coalesce(*(self._table[each].length() for each in self._others))
        return self._table[self._source(name)].length()

    def wanted(self, name: str) -> ir.IntegerColumn | int:
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
            return self._complement(index)
        if name == "in_rms":
            return self._fed_in(index)
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

    def _fed_in(self, index: Index) -> ir.FloatingColumn:
        """Return the RMS fed in: the fc's output at depth 1, then the state fed from the depth
        before."""
        import ibis

        if not isinstance(index, int) or index:
            return self.at("fed_rms", index - 1)
        fc = self._table.fc_rms.cast("float32").cast("float64")
        return ibis.ifelse(self.there("in_rms"), fc, ibis.null("float64"))

    def _complement(self, index: Index) -> ir.FloatingColumn:
        import ibis

        others = [self._table[name][index].cast("float64") for name in self._others]
        if not self._careful:  # a row without the list has null or 0 here, which adds nothing
            return ibis.greatest(1.0 - functools.reduce(operator.add, others), 0.0)
        zero = [ibis.ifelse(each.isnull() | each.isnan(), 0.0, each) for each in others]
        left = ibis.greatest(1.0 - sum(zero), 0.0)
        return ibis.ifelse(self.there("generated_mass"), left, ibis.null("float64"))
