"""Conditions on rows, as given to --where, in a language of their own.

The language looks like SQL, but no part of the text enters a query as it was written: only known
tokens reach the parser, which could parse all of SQL; the tree has known nodes only and operands of
matching kinds; and engines get an Ibis expression that is built from it. Arithmetic is in floating
point and a division by zero is null, so that all engines agree and no value of a column can make a
query fail.
"""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlglot import Dialect, ErrorLevel, exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from driftscope.errors import UsageError

if TYPE_CHECKING:
    import ibis.expr.types as ir


class Kind(StrEnum):
    """Type of the value that an expression yields."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One documented column."""

    type: str
    """Type of the column, as Ibis names it."""
    meaning: str

    @property
    def kind(self) -> Kind:
        """Kind of value in the column."""
        return Kind.TEXT if self.type == "string" else Kind.NUMBER


def _column(type_: str, meaning: str) -> Column:
    return Column(type=type_, meaning=meaning)


_OF_ROWS = {
    "time_s": _column("float64", "Unix time in seconds"),
    "position": _column("int64", "index of the last verified token in its request, from 0"),
    "context": _column("int64", "length of the context in tokens, position + 1"),
    "batch": _column("int64", "requests in the round's engine step"),
    "k": _column("int64", "tokens that the round drafted, or that the chain has"),
    "replica": _column("int64", "data-parallel rank"),
    "request": _column("string", "the request's id"),
    "execution": _column("string", "how the drafter of a recorded chain ran, such as eager"),
}
_OF_REQUESTS = {
    "label": _column("string", "workload label"),
    "prompt_tokens": _column("int64", "tokens of the prompt"),
    "output_tokens": _column("int64", "tokens of the answer"),
    "temperature": _column("float64", "sampling temperature"),
    "finish_reason": _column("string", "why the request ended, such as stop or length"),
    "structured": _column("string", "kind of structured output, such as json, or none"),
}
_OF_RUNS = {
    "runner": _column("string", "vLLM's model runner, such as v2"),
    "mode": _column("string", "how the engine runs its models, such as full graphs"),
}
_OF_REGIONS = {
    "region": _column("string", "kind of text that the round drafts, such as code or json"),
    "language": _column(
        "string", "class of the language that the fence of the text names, or no fence"
    ),
    "boundary": _column("int64", "tokens since a block of text last began, null before the first"),
    "copied": _column("int64", "1 if the drafted text repeats an earlier passage, else 0"),
}
OF_REQUESTS = tuple(_OF_REQUESTS)
"""Columns of requests; null in rows of a request that has not finished."""
OF_RUNS = tuple(_OF_RUNS)
OF_REGIONS = tuple(_OF_REGIONS)
"""Columns of the text at a round's first drafted token, see `driftscope.regions`; null in rows of a
request that has not finished, and where regions were not recorded."""
COLUMNS: Mapping[str, Column] = {**_OF_ROWS, **_OF_REQUESTS, **_OF_REGIONS, **_OF_RUNS}
"""All columns by name. `execution` is null in a round without a recorded chain, unless all chains
of the run ran in the same way."""
OF_STEPS = ("time_s", "batch", "k", "replica", "execution", *OF_RUNS)
"""Columns that a worker's step has, too; conditions on other columns do not restrict steps."""

Names = frozenset[str]


SHOWN_CHARS = 60
"""Most characters of a condition that an error repeats."""
NEAR = 3
"""Most columns that an error suggests."""


def refused(what: str, part: str | None = None, at: int | None = None) -> UsageError:
    """Return the error about `part` of a condition; `at` is the index at which it begins."""
    place = "" if at is None else f", character {at + 1}"
    return UsageError(f"--where{place}: {'' if part is None else shown(part) + ' '}{what}")


def shown(part: str) -> str:
    """Return `part` as an error repeats it: shortened, and without control characters."""
    return repr(part if len(part) <= SHOWN_CHARS else part[: SHOWN_CHARS - 1] + "…")


def printable(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return "".join(each if each.isprintable() else " " for each in text)


def unknown(name: str, at: int, *, in_quotes: bool) -> UsageError:
    """Return the error about a name that is not a column."""
    near = get_close_matches(name.lower(), COLUMNS, n=NEAR)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    quotes = "; put texts in single quotes" if in_quotes else ""
    return refused(f"is not a column{meant}{quotes} (columns: {', '.join(COLUMNS)})", name, at)


MAX_CHARS = 4096
"""Longest condition in characters: room for two hundred comparisons, and parsed in a few
milliseconds."""
MAX_NESTING = 32
"""Deepest nesting of operators and brackets; the parser's stack allows several times that."""

LANGUAGE = (
    "a condition consists of numbers, 'texts', true, false, = <> < <= > >=, + - * /, and, or, not, "
    f"in, between, like, ilike, is null, brackets and the columns {', '.join(COLUMNS)}"
)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_OPERANDS = (
    *_NAMES,
    TokenType.NUMBER,
    TokenType.STRING,
    TokenType.TRUE,
    TokenType.FALSE,
    TokenType.NULL,
    TokenType.R_PAREN,
)
_ENDS = (TokenType.AND, TokenType.OR, TokenType.COMMA)
"""Tokens that end the scope of a NOT or a minus sign."""
_SIGNS = (
    TokenType.L_PAREN,
    *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE),
    *(TokenType.NOT, TokenType.IN, TokenType.BETWEEN, TokenType.LIKE, TokenType.ILIKE),
    *(TokenType.IS, TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.SLASH),
)
_KNOWN = frozenset((*_OPERANDS, *_ENDS, *_SIGNS))


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a condition, all of them known to the language.

    Raises UsageError for any other token, and for a condition that is too long or nested too
    deeply.
    """
    if len(text) > MAX_CHARS:
        raise refused(f"has {len(text)} characters; at most {MAX_CHARS} are allowed", text)
    for at, character in enumerate(text):
        if character == "\0" or unicodedata.category(character) == "Cs":
            raise refused("is not allowed in a text", character, at)
    try:
        tokens = list(Dialect.get_or_raise("").tokenize(text))
    except SqlglotError:
        raise refused("has a quote that is not closed", text) from None
    if not tokens:
        raise refused("is not a condition; write one such as label = 'chat'", text)
    _check_gaps(text, tokens)
    for at, token in enumerate(tokens):
        _check(token, tokens[at + 1] if at + 1 < len(tokens) else None, text)
    _check_nesting(tokens)
    return tokens


def _check_gaps(text: str, tokens: Sequence[Token]) -> None:
    """Raise UsageError for what the tokenizer skips, apart from white space: comments."""
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    for begin, end in zip(ends, starts, strict=True):
        gap = text[begin:end]
        if gap.strip():
            at = begin + len(gap) - len(gap.lstrip())
            raise refused("is a comment; conditions cannot have comments", gap.strip(), at)


def _check(token: Token, following: Token | None, text: str) -> None:
    excerpt = text[token.start : token.end + 1]
    is_word = excerpt[:1].isalpha() or excerpt[:1] in ('"', "_")
    is_name = token.token_type in _NAMES or (is_word and token.token_type not in _KNOWN)
    if is_name:
        if is_word and following is not None and following.token_type == TokenType.L_PAREN:
            raise refused(
                "is a function or a type; conditions cannot have any", excerpt, token.start
            )
        if token.text.lower() not in COLUMNS:
            quoted = token.token_type == TokenType.IDENTIFIER
            raise unknown(token.text, token.start, in_quotes=quoted)
    elif token.token_type not in _KNOWN:
        raise refused(f"is not part of a condition; {LANGUAGE}", excerpt, token.start)


def _check_nesting(tokens: Sequence[Token]) -> None:
    for token, depth in _depths(tokens):
        if depth > MAX_NESTING:
            raise too_deep(token.start)


def too_deep(at: int | None = None) -> UsageError:
    """Return the error about a condition that is nested too deeply."""
    return refused(
        f"brackets and operators may nest at most {MAX_NESTING} deep; use IN for lists", at=at
    )


def _depths(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yield each token with the number of brackets, NOTs and signs around it."""
    within, prefixes, last = [0], 0, None
    for token in tokens:
        kind = token.token_type
        if kind == TokenType.L_PAREN:
            within.append(within[-1] + prefixes + 1)
            prefixes = 0
        elif kind == TokenType.R_PAREN:
            prefixes = 0
            within = within[:-1] or [0]
        elif kind in _ENDS:
            prefixes = 0
        elif kind == TokenType.NOT or (kind in _ADDITIVE and last not in _OPERANDS):
            prefixes += 1
        last = kind
        yield token, within[-1] + prefixes


_ADDITIVE = (TokenType.PLUS, TokenType.DASH)


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


_COMPARISONS: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_ARITHMETIC_OPERATORS: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
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
        return -_as_float(node.this, rows)
    if isinstance(node, exp.Div):
        return _as_float(node.this, rows) / _as_float(node.expression, rows).nullif(0)
    if type(node) in _ARITHMETIC_OPERATORS:
        return _ARITHMETIC_OPERATORS[type(node)](
            _as_float(node.this, rows), _as_float(node.expression, rows)
        )
    return truth_of(node, rows)


def _as_float(node: exp.Expression, rows: ir.Table) -> Any:
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
