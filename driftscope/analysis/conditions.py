"""The language of conditions: on rows, as given to --where, and on runs, as in rules of `check`.

It looks like SQL, but no part of a text enters a query as it was written. Only known tokens reach
the parser, which could parse all of SQL. Names reach it as quoted identifiers, so that no keyword
of SQL is one. The tree may have known nodes only, with operands of matching kinds.

    EXPR       = COMPARISON | NAME | EXPR and EXPR | EXPR or EXPR | not EXPR | ( EXPR )
    COMPARISON = SUM (= | == | <> | != | < | <= | > | >=) SUM
    SUM        = numbers, texts and NAMEs with + - * / and ( )

On rows (ROWS) a NAME is a column, and there are also in, between, like, ilike, is null, true and
false. Engines get an Ibis expression that is built from the tree: arithmetic is in floating point
and a division by zero is null, so that all engines agree and no value of a column can make a query
fail.

On runs (RULES) a NAME alone is a finding's id or a severity, and in a comparison the path of a
figure in the JSON report, as in `attention.self_mass[-1]` and `baseline.segments["a"].rounds`.
`known(PATH)` is true where the figure exists, and `no_worse(PATH, 5%)` where it is at most 5 %
worse than the baseline's. `driftscope.analysis.gate` evaluates them.
"""

from __future__ import annotations

import math
import operator
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sqlglot import Dialect, ErrorLevel, exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from driftscope.analysis.condition_columns import COLUMNS, Column, Names, ValueType
from driftscope.errors import UsageError

if TYPE_CHECKING:
    import ibis.expr.types as ir


MAX_CHARS = 4096
"""Longest condition in characters: room for two hundred comparisons, and parsed in a few
milliseconds."""
MAX_NESTING = 32
"""Deepest nesting of operators and brackets; the parser's stack allows several times that."""
SHOWN_CHARS = 60
"""Most characters of a condition that an error repeats."""
NEAR = 3
"""Most columns that an error suggests."""
KNOWN, NO_WORSE, BASELINE = "known", "no_worse", "baseline"

COMPARISONS: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
ARITHMETIC: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: operator.truediv,
}
_PATTERNS = (exp.Like, exp.ILike)
NEGATE = "negate"
"""Argument with which some versions of sqlglot express NOT LIKE; others wrap the node in a NOT."""
_PAIR, _ONE = frozenset(("this", "expression")), frozenset(("this",))
_LIST = frozenset(("this", "expressions"))
_NODES: Mapping[type[exp.Expression], frozenset[str]] = {
    **dict.fromkeys((*COMPARISONS, *ARITHMETIC, exp.And, exp.Or), _PAIR),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren), _ONE),
    exp.Identifier: frozenset(("this", "quoted")),
    exp.Literal: frozenset(("this", "is_string")),
}
"""Nodes that every condition may have, each with the arguments that may be set."""
_BRACKETS = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)
_ADDITIVE = (TokenType.PLUS, TokenType.DASH)
_OPERANDS = (
    *(TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING, TokenType.TRUE, TokenType.FALSE),
    *(TokenType.NULL, *_CLOSING),
)
_ENDS = (TokenType.AND, TokenType.OR, TokenType.COMMA)
"""Tokens that end the scope of a NOT or a minus sign."""
_TOKENS = (
    *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE),
    *(TokenType.STAR, TokenType.SLASH, TokenType.NOT, *_ENDS, *_ADDITIVE),
    *(TokenType.L_PAREN, TokenType.R_PAREN, TokenType.NUMBER, TokenType.STRING),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionLanguage:
    """Tokens, nodes, names and functions that a condition may have."""

    option: str
    """Begin of its errors."""
    consists: str
    """Parts of a condition, in words."""
    example: str
    tokens: frozenset[TokenType]
    nodes: Mapping[type[exp.Expression], frozenset[str]]
    columns: Mapping[str, Column] | None
    """Names that there are; None if a name is a figure of a run."""
    functions: Collection[str] = ()

    def refused(self, what: str, part: str | None = None, at: int | None = None) -> UsageError:
        """Return the error about `part` of a condition; `at` is the index at which it begins."""
        place = [self.option] if self.option else []
        place += [] if at is None else [f"character {at + 1}"]
        begin = f"{', '.join(place)}: " if place else ""
        return UsageError(f"{begin}{'' if part is None else _shown(part) + ' '}{what}")


ROWS = ConditionLanguage(
    option="--where",
    consists=(
        "a condition consists of numbers, 'texts', true, false, = <> < <= > >=, + - * /, and, or, "
        "not, in, between, like, ilike, is null, brackets and the columns " + ", ".join(COLUMNS)
    ),
    example="label = 'chat'",
    tokens=frozenset(
        (
            *_TOKENS,
            *(TokenType.TRUE, TokenType.FALSE, TokenType.NULL, TokenType.IS, TokenType.IN),
            *(TokenType.BETWEEN, TokenType.LIKE, TokenType.ILIKE),
        )
    ),
    nodes={
        **_NODES,
        **dict.fromkeys((exp.Boolean, exp.Column), _ONE),
        exp.Null: frozenset(),
        exp.Is: _PAIR,
        **dict.fromkeys(_PATTERNS, _PAIR | {NEGATE}),
        exp.Between: frozenset(("this", "low", "high", NEGATE)),
        exp.In: _LIST | {NEGATE},
    },
    columns=COLUMNS,
)
RULES = ConditionLanguage(
    option="",
    consists=(
        "a rule consists of a finding's id or a severity, numbers, 'texts', paths such as "
        "attention.self_mass[-1], = != < <= > >=, + - * /, and, or, not, brackets, known(PATH) and "
        "no_worse(PATH, 5%)"
    ),
    example="acceptance.mean_length < 2.0",
    tokens=frozenset((*_TOKENS, TokenType.DOT, TokenType.L_BRACKET, TokenType.R_BRACKET)),
    nodes={
        **_NODES,
        exp.Column: frozenset(("this", "table", "db", "catalog")),
        exp.Dot: _PAIR,
        **dict.fromkeys((exp.Bracket, exp.Anonymous), _LIST),
    },
    columns=None,
    functions=(KNOWN, NO_WORSE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One checked condition on rows; made by `condition_of`."""

    text: str
    """Text of the condition as the user wrote it."""
    tree: exp.Expression = field(repr=False, compare=False)

    @property
    def names(self) -> Names:
        """Columns that the condition names."""
        return frozenset(_column_of(node) for node in self.tree.find_all(exp.Column))

    def __str__(self) -> str:
        """Return the text on one line, without control characters."""
        return "".join(char if char.isprintable() else " " for char in self.text)

    def on(self, rows: ir.Table) -> ir.BooleanValue:
        """Return whether each of `rows` meets the condition; `rows` must have the columns that it
        names."""
        return _truth_of(self.tree, rows)


def condition_of(text: str) -> Condition:
    """Parse and check a condition on rows. Raises UsageError, which names the place."""
    return Condition(text=text, tree=tree_of(text, ROWS))


def tree_of(text: str, language: ConditionLanguage) -> exp.Expression:
    """Return the checked tree of one condition. Raises UsageError for any other text."""
    tokens = _tokens_of(text, language)
    try:
        parser = Dialect.get_or_raise("").parser(error_level=ErrorLevel.IMMEDIATE)
        trees = parser.parse(tokens, text)
    except (SqlglotError, RecursionError) as error:
        raise _unparsed(error, tokens, language) from None
    if len(trees) != 1 or trees[0] is None:
        raise language.refused("is not one condition", text)
    tree = trees[0]
    _check_nodes(tree, language)
    if language is RULES:
        tree = tree.transform(_unchained)
    kind = _Checker(language).kind_of(tree)
    if kind != ValueType.TRUTH and not is_finding(tree, language):
        what = f"is {kind}, not true or false; compare it, as in {language.example}"
        raise language.refused(what, text, 0)
    return tree


def is_finding(node: exp.Expression, language: ConditionLanguage = RULES) -> bool:
    """Whether a condition is a name alone, which stands for a finding or a severity in a rule."""
    node = node.unnest()
    is_name = isinstance(node, exp.Column) and len(node.parts) == 1
    return is_name and language.columns is None


def number_of(node: exp.Expression, language: ConditionLanguage = ROWS) -> int | float:
    """Return the value of a numeric Literal. Raises UsageError for a value that no column can
    hold."""
    literal = str(node.this)
    try:
        value = int(literal) if literal.isdecimal() else float(literal)
    except ValueError:
        raise language.refused("is not a number", literal) from None
    if value > _MAX_INT:
        value = float(literal)
    if not math.isfinite(value):
        raise language.refused("is too large a number", literal)
    return value


_MAX_INT = 2**63 - 1


def steps_of(node: exp.Expression) -> tuple[str | int, ...]:
    """Return the keys and indices of a path. Raises UsageError for any other node."""
    if isinstance(node, exp.Column):
        return tuple(part.name for part in node.parts)
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return (*steps_of(node.this), node.expression.name)
    if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
        index = node.expressions[0]
        sign, number = (-1, index.this) if isinstance(index, exp.Neg) else (1, index)
        if isinstance(number, exp.Literal) and (number.is_string or number.this.isdecimal()):
            step = number.this if number.is_string else sign * int(number.this)
            return (*steps_of(node.this), step)
    raise RULES.refused("is not a path such as attention.self_mass[-1]", *_text_and_place(node))


def _shown(part: str) -> str:
    """Return `part` as an error repeats it: shortened, and without control characters."""
    return repr(part if len(part) <= SHOWN_CHARS else part[: SHOWN_CHARS - 1] + "…")


def _tokens_of(text: str, language: ConditionLanguage) -> list[Token]:
    """Return the tokens of a condition as the parser gets them.

    Raises UsageError for a token that is not in the language, and for a condition that is too long
    or nested too deeply.
    """
    if len(text) > MAX_CHARS:
        raise language.refused(f"has {len(text)} characters; at most {MAX_CHARS} are allowed", text)
    for at, character in enumerate(text):
        if character == "\0" or unicodedata.category(character) == "Cs":
            raise language.refused("is not allowed in a text", character, at)
    try:
        tokens = list(Dialect.get_or_raise("").tokenize(text))
    except SqlglotError:
        raise language.refused("has a quote that is not closed", text) from None
    if not tokens:
        raise language.refused(f"is not a condition; write one such as {language.example}", text)
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(text)]
    for begin, end in zip(ends, starts, strict=True):
        gap = text[begin:end]
        if gap.strip():
            at = begin + len(gap) - len(gap.lstrip())
            raise language.refused("is a comment; conditions cannot have comments", gap.strip(), at)
    known: list[Token] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        kind = None if following is None else following.token_type
        if token.token_type == TokenType.MOD and _ends_share(known, kind, language):
            known[-1] = _as(known[-1], TokenType.NUMBER, repr(float(known[-1].text) / 100))
        else:
            known.append(_parser_token(token, kind, text, language))
    for token, depth in _depths(known):
        if depth > MAX_NESTING:
            raise _too_deep(language, token.start)
    return known


def _ends_share(
    known: Sequence[Token], following: TokenType | None, language: ConditionLanguage
) -> bool:
    """Whether a percent sign ends the last argument of a function, such as 5%)."""
    after_number = bool(known) and known[-1].token_type == TokenType.NUMBER
    return bool(language.functions) and after_number and following == TokenType.R_PAREN


def _as(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, token.line, token.col, token.start, token.end)


def _parser_token(
    token: Token, following: TokenType | None, text: str, language: ConditionLanguage
) -> Token:
    """Return a token as the parser gets it: names as quoted identifiers, and texts in double quotes
    as texts where names need no quotes. Raises UsageError for one that is not in the language."""
    excerpt, kind = text[token.start : token.end + 1], token.token_type
    quoted = kind == TokenType.IDENTIFIER
    if quoted and language.columns is None:
        return _as(token, TokenType.STRING, token.text)
    word = quoted or excerpt[:1].isalpha() or excerpt[:1] == "_"
    if kind not in language.tokens and (word or kind == TokenType.VAR):
        if word and following == TokenType.L_PAREN:
            if excerpt in language.functions:
                return token
            others = " and ".join(language.functions)
            allowed = f"there are {others}" if others else "conditions cannot have any"
            raise language.refused(f"is a function or a type; {allowed}", excerpt, token.start)
        if language.columns is not None and token.text.lower() not in language.columns:
            raise _unknown(token, language.columns, in_quotes=quoted)
        return _as(token, TokenType.IDENTIFIER, token.text)
    if kind not in language.tokens:
        what = f"is not part of a condition; {language.consists}"
        raise language.refused(what, excerpt, token.start)
    return token


def _unknown(token: Token, columns: Mapping[str, Column], *, in_quotes: bool) -> UsageError:
    """Return the error about a name that is not a column."""
    near = get_close_matches(token.text.lower(), columns, n=NEAR)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    quotes = "; put texts in single quotes" if in_quotes else ""
    what = f"is not a column{meant}{quotes} (columns: {', '.join(columns)})"
    return ROWS.refused(what, token.text, token.start)


def _too_deep(language: ConditionLanguage, at: int | None = None) -> UsageError:
    return language.refused(
        f"brackets and operators may nest at most {MAX_NESTING} deep; use IN for lists", at=at
    )


def _depths(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yield each token with the number of brackets, NOTs and signs around it."""
    within, prefixes, last = [0], 0, None
    for token in tokens:
        kind = token.token_type
        if kind in _BRACKETS:
            within.append(within[-1] + prefixes + 1)
            prefixes = 0
        elif kind in _CLOSING:
            prefixes = 0
            within = within[:-1] or [0]
        elif kind in _ENDS:
            prefixes = 0
        elif kind == TokenType.NOT or (kind in _ADDITIVE and last not in _OPERANDS):
            prefixes += 1
        last = kind
        yield token, within[-1] + prefixes


def _unparsed(error: Exception, tokens: Sequence[Token], language: ConditionLanguage) -> UsageError:
    errors = getattr(error, "errors", None)
    if not errors:
        return _too_deep(language)
    place = (errors[0].get("line"), errors[0].get("col"))
    at = next((token.start for token in tokens if (token.line, token.col) == place), None)
    what = f"is not allowed here, or is incomplete; {language.consists}"
    return language.refused(what, errors[0].get("highlight"), at)


def _check_nodes(tree: exp.Expression, language: ConditionLanguage) -> None:
    """Raise UsageError for trees that are too deep, and for nodes and arguments not in the
    language."""
    todo = [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if depth > MAX_NESTING:
            raise _too_deep(language)
        used = {name for name, value in node.args.items() if value}
        if used - language.nodes.get(type(node), frozenset()) or type(node) not in language.nodes:
            raise language.refused(
                f"is not part of a condition; {language.consists}", *_text_and_place(node)
            )
        if isinstance(node, exp.Column) and language is ROWS and _column_of(node) not in COLUMNS:
            raise language.refused(
                f"is not allowed here; {language.consists}", *_text_and_place(node)
            )
        todo += [
            (
                child,
                depth
                + (0 if isinstance(node, exp.And | exp.Or) and type(node) is type(child) else 1),
            )
            for child in node.iter_expressions()
        ]


def _unchained(node: exp.Expression) -> exp.Expression:
    """Return `1 < k < 4` as `1 < k and k < 4`."""
    if type(node) in COMPARISONS and type(node.this) in COMPARISONS:
        last = type(node)(this=node.this.expression.copy(), expression=node.expression)
        return exp.And(this=_unchained(node.this), expression=last)
    return node


def _text_and_place(node: exp.Expression) -> tuple[str, int | None]:
    """Return a node's text and the index of its first name, which sqlglot records since 26.17."""
    places = (name.meta.get("start") for name in node.find_all(exp.Identifier))
    return _sql(node), min((place for place in places if place is not None), default=None)


def _sql(node: exp.Expression) -> str:
    plain = node.copy()
    for name in plain.find_all(exp.Identifier):
        name.set("quoted", False)
    return str(plain.sql(comments=False))


def _column_of(node: exp.Expression) -> str:
    """Return the name of the column that a Column node stands for."""
    return str(node.name).lower()


@dataclass(frozen=True, slots=True)
class _Checker:
    """Check of the kinds of operands in a language; raises UsageError if they do not fit."""

    language: ConditionLanguage

    def need(self, kind: ValueType, *operands: exp.Expression, within: exp.Expression) -> ValueType:
        """Return the kind that all operands of a node must have."""
        for operand in operands:
            found = self.kind_of(operand)
            is_figure = found == ValueType.FIGURE and kind != ValueType.TRUTH
            if found != kind and not is_figure and not is_finding(operand, self.language):
                why = f"{_operand_words(operand)} is {found}, not {kind}"
                raise self._refused(f"is not possible: {why}", within)
        return kind

    def kind_of(self, node: exp.Expression) -> ValueType:
        """Return the kind of value of a node."""
        if isinstance(node, exp.Column | exp.Dot | exp.Bracket):
            if self.language.columns is not None:
                return self.language.columns[_column_of(node)].kind
            steps_of(node)
            return ValueType.FIGURE
        if isinstance(node, exp.Literal):
            if not node.is_string:
                number_of(node, self.language)
            return ValueType.TEXT if node.is_string else ValueType.NUMBER
        if isinstance(node, exp.Paren):
            return self.kind_of(node.this)
        if isinstance(node, exp.Neg):
            return self.need(ValueType.NUMBER, node.this, within=node)
        if type(node) in ARITHMETIC:
            return self.need(ValueType.NUMBER, node.this, node.expression, within=node)
        self._check_truth(node)
        return ValueType.TRUTH

    def _check_truth(self, node: exp.Expression) -> None:
        """Check the operands of a node whose value is true or false."""
        if isinstance(node, exp.Not):
            self.need(ValueType.TRUTH, node.this, within=node)
        elif isinstance(node, exp.And | exp.Or):
            self.need(ValueType.TRUTH, *node.flatten(), within=node)
        elif type(node) in COMPARISONS:
            self._same_kind(node, node.this, node.expression)
        elif isinstance(node, exp.Between):
            self._same_kind(node, node.this, node.args["low"], node.args["high"])
        elif isinstance(node, exp.In):
            self._same_kind(node, node.this, *node.expressions)
            if not node.expressions:
                raise self._refused("lacks a list in brackets, as in k in (2, 4)", node)
        elif isinstance(node, _PATTERNS):
            self.need(ValueType.TEXT, node.this, node.expression, within=node)
            if not isinstance(node.expression, exp.Literal):
                raise self._refused("lacks a pattern in quotes, as in label like 'chat%'", node)
            if "\\" in node.expression.this:
                what = "has a backslash, which patterns cannot contain; compare with ="
                raise self._refused(what, node)
        elif isinstance(node, exp.Is):
            if not isinstance(node.expression, exp.Null):
                raise self._refused("is not known; IS takes NULL or NOT NULL", node)
            self.kind_of(node.this)
        elif isinstance(node, exp.Anonymous):
            self._check_call(node)
        elif not isinstance(node, exp.Boolean):
            what = "is not allowed here; write IS NULL or IS NOT NULL"
            raise self.language.refused(what, "null")

    def _check_call(self, node: exp.Anonymous) -> None:
        """Check a function's arguments: a path, and of no_worse a margin."""
        if len(node.expressions) != (2 if node.name == NO_WORSE else 1):
            raise self._refused("is neither known(PATH) nor no_worse(PATH, 5%)", node)
        figure, *margins = node.expressions
        if steps_of(figure)[0] == BASELINE and margins:
            raise self._refused("is a baseline's; no_worse needs a figure of the run", figure)
        for margin in margins:
            share = isinstance(margin, exp.Literal) and not margin.is_string
            if not share or not 0 < number_of(margin, self.language) < 1:
                what = "is no margin; no_worse needs one between 0% and 100%, such as 5%"
                raise self._refused(what, margin)

    def _same_kind(
        self, node: exp.Expression, first: exp.Expression, *others: exp.Expression
    ) -> None:
        kinds = {operand: self.kind_of(operand) for operand in (first, *others)}
        wanted = next(
            (kind for kind in kinds.values() if kind != ValueType.FIGURE), ValueType.FIGURE
        )
        for operand, kind in kinds.items():
            if kind not in (wanted, ValueType.FIGURE) or (
                ValueType.TRUTH in (kind, wanted) and kind != wanted
            ):
                one, other = _operand_words(first), _operand_words(operand)
                why = f"{one} is {kinds[first]} and {other} is {kind}"
                raise self._refused(f"is not possible: {why}", node)
        is_equality = isinstance(node, exp.EQ | exp.NEQ) and self.language is ROWS
        if wanted == ValueType.TRUTH and not is_equality:
            what = "is not possible: conditions have no order; join them with AND or OR"
            raise self._refused(what, node)

    def _refused(self, what: str, node: exp.Expression) -> UsageError:
        return self.language.refused(what, *_text_and_place(node))


def _operand_words(node: exp.Expression) -> str:
    return _column_of(node) if isinstance(node, exp.Column) else _shown(_sql(node))


def _truth_of(node: exp.Expression, rows: ir.Table) -> ir.BooleanValue:
    """Return whether each of `rows` meets the condition of a checked `node`."""
    import ibis

    if isinstance(node, exp.Boolean):
        return ibis.literal(bool(node.this))
    if isinstance(node, exp.Paren):
        return _truth_of(node.this, rows)
    if isinstance(node, exp.Not):
        return ~_truth_of(node.this, rows)
    if isinstance(node, exp.And | exp.Or):
        join = operator.and_ if isinstance(node, exp.And) else operator.or_
        return _joined(join, [_truth_of(part, rows) for part in node.flatten()])
    value = _operand(node.this, rows)
    if type(node) in COMPARISONS:
        comparison = COMPARISONS[type(node)](value, _operand(node.expression, rows))
    elif isinstance(node, exp.Is):
        comparison = value.isnull()
    elif isinstance(node, exp.Between):
        comparison = value.between(*(_operand(node.args[end], rows) for end in ("low", "high")))
    elif isinstance(node, exp.In):
        comparison = value.isin([_operand(item, rows) for item in node.expressions])
    else:
        pattern = str(node.expression.this)
        comparison = value.ilike(pattern) if isinstance(node, exp.ILike) else value.like(pattern)
    return ~comparison if node.args.get(NEGATE) else comparison


def _joined(join: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """Join `parts` as a balanced tree: engines limit the depth of an expression."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return join(_joined(join, parts[:middle]), _joined(join, parts[middle:]))


def _operand(node: exp.Expression, rows: ir.Table) -> Any:
    """Return the value of an operand of a comparison."""
    if isinstance(node, exp.Column):
        return rows[_column_of(node)]
    if isinstance(node, exp.Literal):
        import ibis

        if node.is_string:
            return ibis.literal(str(node.this))
        number = number_of(node)
        if isinstance(number, int):
            return ibis.literal(number)
        # A number written with a point is a decimal on some engines and may overflow.
        return ibis.literal(repr(number)).cast("float64")
    if isinstance(node, exp.Paren):
        return _operand(node.this, rows)
    if isinstance(node, exp.Neg):
        return -_operand(node.this, rows).cast("float64")
    if type(node) in ARITHMETIC:
        left, right = (
            _operand(side, rows).cast("float64") for side in (node.this, node.expression)
        )
        return ARITHMETIC[type(node)](left, right.nullif(0) if isinstance(node, exp.Div) else right)
    return _truth_of(node, rows)
