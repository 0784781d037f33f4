"""Translation of a checked condition to an Ibis expression, from which any engine's SQL is made.

Arithmetic is in floating point and a division by zero is null, so that all engines agree and no
value of a column can make a query fail.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from driftscope.analysis.conditions.tree import NEGATE, column_of, number_of

if TYPE_CHECKING:
    import ibis.expr.types as ir

_COMPARISONS: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_ARITHMETIC: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}


def truth_of(node: exp.Expression, rows: ir.Table) -> ir.BooleanValue:
    """Return whether each of `rows` meets the condition of a checked `node`."""
    import ibis

    if isinstance(node, exp.Boolean):
        return ibis.literal(bool(node.this))
    if isinstance(node, exp.Paren):
        return truth_of(node.this, rows)
    if isinstance(node, exp.Not):
        return ~truth_of(node.this, rows)
    if isinstance(node, exp.And | exp.Or):
        join = operator.and_ if isinstance(node, exp.And) else operator.or_
        return _joined(join, [truth_of(each, rows) for each in node.flatten()])
    comparison = _compared(node, rows)
    return ~comparison if node.args.get(NEGATE) else comparison


def _joined(join: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Join `parts` as a balanced tree: engines limit the depth of an expression."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


def _compared(node: exp.Expression, rows: ir.Table) -> Any:
    value = _value(node.this, rows)
    if type(node) in _COMPARISONS:
        return _COMPARISONS[type(node)](value, _value(node.expression, rows))
    if isinstance(node, exp.Is):
        return value.isnull()
    if isinstance(node, exp.Between):
        return value.between(*(_value(node.args[end], rows) for end in ("low", "high")))
    if isinstance(node, exp.In):
        return value.isin([_value(each, rows) for each in node.expressions])
    pattern = str(node.expression.this)
    return value.ilike(pattern) if isinstance(node, exp.ILike) else value.like(pattern)


def _value(node: exp.Expression, rows: ir.Table) -> Any:
    """Return the value of an operand of a comparison."""
    if isinstance(node, exp.Column):
        return rows[column_of(node)]
    if isinstance(node, exp.Literal):
        return _constant(node)
    if isinstance(node, exp.Paren):
        return _value(node.this, rows)
    if isinstance(node, exp.Neg):
        return -_number(node.this, rows)
    if isinstance(node, exp.Div):
        return _number(node.this, rows) / _number(node.expression, rows).nullif(0)
    if type(node) in _ARITHMETIC:
        return _ARITHMETIC[type(node)](_number(node.this, rows), _number(node.expression, rows))
    return truth_of(node, rows)


def _number(node: exp.Expression, rows: ir.Table) -> Any:
    return _value(node, rows).cast("float64")


def _constant(node: exp.Literal) -> Any:
    import ibis

    if node.is_string:
        return ibis.literal(str(node.this))
    number = number_of(node)
    if isinstance(number, int):
        return ibis.literal(number)
    # A number written with a point is a decimal on some engines and may overflow.
    return ibis.literal(repr(number)).cast("float64")
