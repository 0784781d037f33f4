"""Parsing of a condition to a checked tree, with known nodes only and operands of matching
kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sqlglot import Dialect, ErrorLevel, exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token

from driftscope.analysis.conditions.columns import COLUMNS, Kind
from driftscope.analysis.conditions.errors import refused, shown
from driftscope.analysis.conditions.tokens import LANGUAGE, MAX_NESTING, tokens_of, too_deep
from driftscope.errors import UsageError

_PAIR = frozenset(("this", "expression"))
_EQUALITY = (exp.EQ, exp.NEQ)
_ORDER = (exp.LT, exp.LTE, exp.GT, exp.GTE)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div)
_CONNECTORS = (exp.And, exp.Or)
_PATTERNS = (exp.Like, exp.ILike)
NEGATE = "negate"
"""Argument with which some versions of sqlglot express NOT LIKE; others wrap the node in a NOT."""
ARGUMENTS: Mapping[type[exp.Expression], frozenset[str]] = {
    **dict.fromkeys((*_EQUALITY, *_ORDER, *_ARITHMETIC, *_CONNECTORS, exp.Is), _PAIR),
    **dict.fromkeys(_PATTERNS, _PAIR | {NEGATE}),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren, exp.Boolean, exp.Column), frozenset(("this",))),
    exp.Between: frozenset(("this", "low", "high", NEGATE)),
    exp.In: frozenset(("this", "expressions", NEGATE)),
    exp.Identifier: frozenset(("this", "quoted")),
    exp.Literal: frozenset(("this", "is_string")),
    exp.Null: frozenset(),
}
"""Nodes that a condition may have, each with the arguments that may be set."""


def tree_of(text: str) -> exp.Expression:
    """Return the checked tree of one condition. Raises UsageError for any other text."""
    tokens = tokens_of(text)
    try:
        parser = Dialect.get_or_raise("").parser(error_level=ErrorLevel.IMMEDIATE)
        trees = parser.parse(tokens, text)
    except (SqlglotError, RecursionError) as error:
        raise _unparsed(error, tokens) from None
    if len(trees) != 1 or trees[0] is None:
        raise refused("is not one condition", text)
    tree = trees[0]
    _check_nodes(tree)
    if kind_of(tree) != Kind.TRUTH:
        raise refused(
            f"is {kind_of(tree)}, not true or false; compare it, as in label = 'chat'", text, 0
        )
    return tree


def column_of(node: exp.Expression) -> str:
    """Return the name of the column that a Column node stands for."""
    return str(node.name).lower()


def number_of(node: exp.Expression) -> int | float:
    """Return the value of a numeric Literal. Raises UsageError for a value that no column can
    hold."""
    literal = str(node.this)
    try:
        value = int(literal) if literal.isdecimal() else float(literal)
    except ValueError:
        raise refused("is not a number", literal) from None
    if value > _MAX_INT:
        value = float(literal)
    if not math.isfinite(value):
        raise refused("is too large a number", literal)
    return value


_MAX_INT = 2**63 - 1


def kind_of(node: exp.Expression) -> Kind:
    """Return the kind of value of a checked node. Raises UsageError if its operands do not fit."""
    if isinstance(node, exp.Column):
        return COLUMNS[column_of(node)].kind
    if isinstance(node, exp.Literal):
        return Kind.TEXT if node.is_string else _number(node)
    if isinstance(node, exp.Paren):
        return kind_of(node.this)
    if isinstance(node, exp.Neg):
        return _need(node, Kind.NUMBER, node.this)
    if isinstance(node, _ARITHMETIC):
        return _need(node, Kind.NUMBER, node.this, node.expression)
    _check_truth(node)
    return Kind.TRUTH


def _check_truth(node: exp.Expression) -> None:
    """Check the operands of a node whose value is true or false; raise UsageError if they do not
    fit."""
    if isinstance(node, exp.Not):
        _need(node, Kind.TRUTH, node.this)
    elif isinstance(node, _CONNECTORS):
        _need(node, Kind.TRUTH, *node.flatten())
    elif isinstance(node, _EQUALITY):
        _alike(node, node.this, node.expression)
    elif isinstance(node, _ORDER):
        _ordered(node, node.this, node.expression)
    elif isinstance(node, exp.Between):
        _ordered(node, node.this, node.args["low"], node.args["high"])
    elif isinstance(node, exp.In):
        _ordered(node, node.this, *node.expressions)
        if not node.expressions:
            raise refused("lacks a list in brackets, as in k in (2, 4)", *_part(node))
    elif isinstance(node, _PATTERNS):
        _check_pattern(node)
    elif isinstance(node, exp.Is):
        if not isinstance(node.expression, exp.Null):
            raise refused("is not known; IS takes NULL or NOT NULL", *_part(node))
        kind_of(node.this)
    elif not isinstance(node, exp.Boolean):
        raise refused("is not allowed here; write IS NULL or IS NOT NULL", "null")


def _check_pattern(node: exp.Expression) -> None:
    _need(node, Kind.TEXT, node.this, node.expression)
    if not isinstance(node.expression, exp.Literal):
        raise refused("lacks a pattern in quotes, as in label like 'chat%'", *_part(node))
    if "\\" in node.expression.this:
        raise refused(
            "has a backslash, which patterns cannot contain; compare with =", *_part(node)
        )


def _number(node: exp.Expression) -> Kind:
    number_of(node)
    return Kind.NUMBER


def _need(node: exp.Expression, kind: Kind, *operands: exp.Expression) -> Kind:
    for operand in operands:
        if (operand_kind := kind_of(operand)) != kind:
            raise _misfit(node, f"{_words(operand)} is {operand_kind}, not {kind}")
    return kind


def _alike(node: exp.Expression, first: exp.Expression, *others: exp.Expression) -> Kind:
    wanted = kind_of(first)
    for other in others:
        if (other_kind := kind_of(other)) != wanted:
            raise _misfit(node, f"{_words(first)} is {wanted} and {_words(other)} is {other_kind}")
    return wanted


def _ordered(node: exp.Expression, *operands: exp.Expression) -> None:
    if _alike(node, *operands) == Kind.TRUTH:
        raise _misfit(node, "conditions have no order; join them with AND or OR")


def _misfit(node: exp.Expression, why: str) -> UsageError:
    return refused(f"is not possible: {why}", *_part(node))


def _words(node: exp.Expression) -> str:
    return column_of(node) if isinstance(node, exp.Column) else shown(_sql(node))


def _part(node: exp.Expression) -> tuple[str, int | None]:
    """Return a node's text and the index of its first name, which sqlglot records since 26.17."""
    places = (each.meta.get("start") for each in node.find_all(exp.Identifier))
    return _sql(node), min((place for place in places if place is not None), default=None)


def _sql(node: exp.Expression) -> str:
    return str(node.sql(comments=False))


def _check_nodes(tree: exp.Expression) -> None:
    """Raise UsageError for trees that are too deep, and for nodes and arguments not in the
    language."""
    nodes: list[exp.Expression] = []
    todo = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if depth > MAX_NESTING:
            raise too_deep()
        nodes.append(node)
        todo += [(each, depth + _deeper(node, each)) for each in node.iter_expressions()]
    for node in nodes:
        allowed = ARGUMENTS.get(type(node), frozenset())
        used = {name for name, value in node.args.items() if value}
        if type(node) not in ARGUMENTS or used - allowed:
            raise refused(f"is not part of a condition; {LANGUAGE}", *_part(node))
        if isinstance(node, exp.Column) and column_of(node) not in COLUMNS:
            raise refused(f"is not allowed here; {LANGUAGE}", *_part(node))  # such as a lone `is`


def _deeper(node: exp.Expression, child: exp.Expression) -> int:
    """Return the levels that `child` adds: none in a chain of ANDs, or of ORs, which becomes a
    balanced tree."""
    return 0 if isinstance(node, _CONNECTORS) and type(node) is type(child) else 1


def _unparsed(error: Exception, tokens: Sequence[Token]) -> UsageError:
    errors = getattr(error, "errors", None)
    if not errors:
        return too_deep()
    place = (errors[0].get("line"), errors[0].get("col"))
    at = next((each.start for each in tokens if (each.line, each.col) == place), None)
    part = errors[0].get("highlight")
    return refused(f"is not allowed here, or is incomplete; {LANGUAGE}", part, at)
