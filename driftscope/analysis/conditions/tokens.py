"""Tokens of a condition, and limits on their number and nesting.

Only tokens that the language knows reach the parser, which could parse all of SQL.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from sqlglot import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from driftscope.analysis.conditions.columns import COLUMNS
from driftscope.analysis.conditions.errors import refused, unknown
from driftscope.errors import UsageError

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
