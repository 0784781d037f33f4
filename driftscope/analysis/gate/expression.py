"""The language of rules and its parser: a small part of Python's grammar, which is never run.

    EXPR     = comparison | FINDING | EXPR and EXPR | EXPR or EXPR | not EXPR | ( EXPR )
    comparison = sum (< | <= | > | >= | == | !=) sum ...
    sum      = numbers, "text" and PATHs with + - * / and ( )
    PATH     = name.name[index] ..., as in the JSON report's run; baseline.PATH for the other run
    FINDING  = a finding's id, or a severity
    known(PATH) is true where the figure exists
    no_worse(PATH, 5%) is true where the figure is at most 5 % worse than the baseline's

Python's own parser makes the tree; everything that is not in the list above is refused.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from driftscope.errors import UsageError

BASELINE = "baseline"
_LONGEST = 1000
"""Largest number of characters; a rule is one line."""
_SHARE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)%(?=\s*\))")
"""A percentage as the last argument of a function."""
_SECONDS = "_s"
"""Ending of the names of times, of which less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Path of a figure in a run's JSON."""

    steps: tuple[str | int, ...]
    baseline: bool = False

    def __str__(self) -> str:
        out = BASELINE if self.baseline else ""
        for step in self.steps:
            plain = isinstance(step, str) and step.isidentifier()
            out += (f".{step}" if out else f"{step}") if plain else f"[{step!r}]"
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """Constant number or text."""

    value: float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Arithmetic on two terms; `sign` is one of + - * /."""

    sign: str
    left: Term
    right: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """Negation of a term."""

    of: Term


Term = Path | Literal | Arithmetic | Negative


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two terms; `sign` is one of < <= > >= == !=."""

    sign: str
    left: Term
    right: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCondition:
    """Condition that a finding with this id, or with this severity or a worse one, was made."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Condition that a figure is not null."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Junction:
    """Condition that all of `parts` hold if `every`, else that any of them holds."""

    every: bool
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """Condition that another condition does not hold."""

    of: Condition


Condition = Comparison | FindingCondition | Known | Junction | Not

_SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}


def parse(text: str) -> Condition:
    """Return the condition that `text` states; raises UsageError, which says what is wrong with
    it."""
    if len(text) > _LONGEST:
        raise UsageError(f"rule of {len(text)} characters; at most {_LONGEST} are allowed")
    try:
        return _condition(ast.parse(_SHARE.sub(_as_number, text.strip()), mode="eval").body)
    except _NotAllowedError as error:
        raise UsageError(f"rule {text!r}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"rule {text!r}: cannot be read ({reason}); write a finding's id, or a comparison such "
            "as acceptance.mean_length < 2.0"
        ) from error


class _NotAllowedError(Exception):
    """A piece of Python that a rule may not contain."""


def _condition(node: ast.expr) -> Condition:
    match node:
        case ast.BoolOp(op=joint, values=values):
            parts = tuple(_condition(value) for value in values)
            return Junction(every=isinstance(joint, ast.And), parts=parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(of=_condition(operand))
        case ast.Compare():
            return _comparison(node)
        case ast.Name(id=name):
            return FindingCondition(name=name)
        case ast.Call(func=ast.Name(id="known"), args=[argument], keywords=[]):
            path = _term(argument)
            if isinstance(path, Path):
                return Known(path=path)
        case ast.Call(func=ast.Name(id="no_worse"), args=[figure, margin], keywords=[]):
            return _no_worse(_term(figure), _term(margin))
    raise _NotAllowedError(
        f"{ast.unparse(node)!r} is neither a comparison nor a finding's id; compare it with "
        "something"
    )


def _no_worse(figure: Term, margin: Term) -> Condition:
    """Return the condition that a run's figure is less than `margin` worse than the baseline's,
    which is a ratio, so that the errors of paired prompts cancel."""
    if not isinstance(figure, Path) or figure.baseline:
        raise _NotAllowedError("no_worse needs the path of a run's figure, and a margin such as 5%")
    if not isinstance(margin, Literal) or isinstance(margin.value, str) or not 0 < margin.value < 1:
        raise _NotAllowedError("no_worse needs a margin between 0% and 100%, such as 5%")
    reference = Path(steps=figure.steps, baseline=True)
    ratio = Arithmetic(sign="/", left=figure, right=reference)
    names = [step for step in figure.steps if isinstance(step, str)]
    if names and names[-1].endswith(_SECONDS):
        return Comparison(sign="<=", left=ratio, right=Literal(value=1.0 + margin.value))
    return Comparison(sign=">=", left=ratio, right=Literal(value=1.0 - margin.value))


def _as_number(share: re.Match[str]) -> str:
    return repr(float(share[1]) / 100)


def _comparison(node: ast.Compare) -> Condition:
    terms = [_term(side) for side in (node.left, *node.comparators)]
    parts = tuple(
        Comparison(sign=_sign(op), left=left, right=right)
        for op, left, right in zip(node.ops, terms, terms[1:], strict=False)
    )
    return parts[0] if len(parts) == 1 else Junction(every=True, parts=parts)


def _term(node: ast.expr) -> Term:
    match node:
        case ast.Constant(value=bool() | None):
            pass
        case ast.Constant(value=int() | float() as number):
            return Literal(value=float(number))
        case ast.Constant(value=str() as text):
            return Literal(value=text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _term(operand)
            if isinstance(inner, Literal) and not isinstance(inner.value, str):
                return Literal(value=-inner.value)
            return Negative(of=inner)
        case ast.BinOp(op=op, left=left, right=right):
            return Arithmetic(sign=_sign(op), left=_term(left), right=_term(right))
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return _path(node)
    raise _NotAllowedError(
        f"{ast.unparse(node)!r} is neither a number nor the path of a figure; see the keys of "
        "a run in the JSON report"
    )


def _path(node: ast.expr) -> Path:
    steps = _steps(node)
    if steps[0] == BASELINE and len(steps) > 1:
        return Path(steps=steps[1:], baseline=True)
    return Path(steps=steps)


def _steps(node: ast.expr) -> tuple[str | int, ...]:
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=inner, attr=name):
            return (*_steps(inner), name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as index)):
            if not isinstance(index, bool):
                return (*_steps(inner), index)
        case ast.Subscript(
            value=inner,
            slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as index)),
        ):
            if not isinstance(index, bool):
                return (*_steps(inner), -index)
    raise _NotAllowedError(f"{ast.unparse(node)!r} is not a path such as attention.self[-1]")


def _sign(op: ast.AST) -> str:
    if type(op) not in _SIGNS:
        raise _NotAllowedError(
            f"{type(op).__name__} is not an operator here; use {' '.join(_SIGNS.values())} and, "
            "or, not"
        )
    return _SIGNS[type(op)]
