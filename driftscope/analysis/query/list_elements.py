"""Elements of the list columns of draft rows, also of those that a sealed file leaves out."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, TypeAlias

from driftscope.analysis.query.chain_shape import AUX, Shape

if TYPE_CHECKING:
    import ibis.expr.types as ir

Index: TypeAlias = "int | ir.IntegerColumn"
"""Place of an element, the same in all rows or one for each."""


class Elements:
    """The lists of `table`, which lacks the `derived` ones; see
    `driftscope.trace.format.derived_columns`.

    Not `careful`: every element that is there is taken for a finite number.
    """

    def __init__(
        self, table: ir.Table, derived: dict[str, str], shape: Shape, *, careful: bool = True
    ) -> None:
        self._table, self._derived, self._shape = table, derived, shape
        self._careful = careful
        self._others = [name for name in shape.masses() if name != "generated_mass"]

    def there(self, name: str) -> ir.BooleanColumn:
        """Whether the row has the list."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.or_(*(self._table[each].notnull() for each in self._others))
        return self._table[self._source(name)].notnull()

    def number(self, name: str) -> ir.IntegerScalar:
        """How many rows have the list."""
        if name == "generated_mass" and name in self._derived:
            return self.there(name).sum()
        return self._table[self._source(name)].count()

    def length(self, name: str) -> ir.IntegerColumn:
        """Elements of the list, null where the row has none. A list that was left out is as long as
        what it follows from."""
        import ibis

        if name == "generated_mass" and name in self._derived:
            return ibis.coalesce(*(self._table[each].length() for each in self._others))
        return self._table[self._source(name)].length()

    def wanted(self, name: str) -> ir.IntegerColumn | int:
        """Elements that the list should have: as many as the row's own chain has depths."""
        if name in AUX or not self._shape.mixed:
            return self._shape.width(name)
        return self._table.k * self._shape.per_depth(name)

    def at(self, name: str, index: Index) -> ir.FloatingColumn:
        """The element at `index`, from 0; null where the row has no such list or element."""
        if name not in self._derived:
            # Spark takes no 64-bit place in a list.
            place = index if isinstance(index, int) else index.cast("int32")
            return self._table[name][place].cast("float64")
        if name == "generated_mass":
            return self._complement(index)
        if name == "in_rms":
            return self._fed_in(index)
        return self.at(self._source(name), index)

    def layers(self, name: str, depth: Index) -> list[ir.FloatingColumn]:
        """Of a mass, the elements of a depth (from 0)."""
        start = depth * self._shape.layers
        return [self.at(name, start + layer) for layer in range(self._shape.layers)]

    def _source(self, name: str) -> str:
        """The column that is there and as long as `name`."""
        while name in self._derived:
            name = self._derived[name]
        return name

    def _fed_in(self, index: Index) -> ir.FloatingColumn:
        """The fc output, then what the depth before fed."""
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
