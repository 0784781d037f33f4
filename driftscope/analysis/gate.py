"""The gate: rules, the language that they are written in, and their evaluation for a run's figures.

    EXPR     = comparison | FINDING | EXPR and EXPR | EXPR or EXPR | not EXPR | ( EXPR )
    comparison = sum (< | <= | > | >= | == | !=) sum ...
    sum      = numbers, "text" and PATHs with + - * / and ( )
    PATH     = name.name[index] ..., as in the JSON report's run; baseline.PATH for the other run
    FINDING  = a finding's id, or a severity
    known(PATH) is true where the figure exists
    no_worse(PATH, 5%) is true where the figure is at most 5 % worse than the baseline's

There are three answers. A comparison is true if it holds over the whole 95% interval of its
difference, false if the opposite does, and None if the interval contains 0: then noise could decide
either way. It is None, too, if a deciding figure is null, or an estimate without an interval.
Figures that are counted, and have no interval, are compared as they are.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path as File
from typing import Any

from driftscope.analysis.baseline_relation import Quantity, Relation, Shared
from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.files import first_line, read_text
from driftscope.errors import UsageError

FAIL_ON, REQUIRE = "fail_on", "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, which is broken if `condition` surely holds and kept if it surely does not."""

    text: str
    """Text of the rule as it was given."""
    condition: Condition
    name: str | None = None
    """Name that its author gave it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.text})" if self.name else self.text


def rule_of(text: str, name: str | None = None, *, required: bool = False) -> Rule:
    """Return the rule that the condition `text` must not hold or, if it is `required`, must; raises
    UsageError if it cannot be read."""
    condition = parse(text)
    return Rule(
        text=text.strip(), condition=Not(of=condition) if required else condition, name=name
    )


def read_rules(path: File) -> list[Rule]:
    """Return the rules of a TOML file: `fail_on = [EXPR, ...]`, `require = [EXPR, ...]`, and tables
    `[[rule]]` with one of both and a `name`.

    Raises UsageError for content that cannot be parsed, OSError for a file that cannot be read.
    """
    try:
        content = tomllib.loads(read_text(path, limit=MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as TOML ({first_line(error)})") from error
    if unknown := sorted(set(content) - {FAIL_ON, REQUIRE, "rule"}):
        raise UsageError(
            f"{path}: {unknown[0]!r} is unknown; a file has fail_on, require and [[rule]]"
        )
    lists = {name: content.get(name, []) for name in (FAIL_ON, REQUIRE)}
    tables = content.get("rule", [])
    if not all(isinstance(each, list) for each in (*lists.values(), tables)):
        raise UsageError(
            f"{path}: fail_on and require must be lists of texts, and each [[rule]] a table"
        )
    rules = [_rule(path, {name: each}) for name, texts in lists.items() for each in texts]
    return rules + [_rule(path, table) for table in tables]


def _rule(path: File, table: Any) -> Rule:
    kinds = set(table) - {"name"} if isinstance(table, Mapping) else set()
    if kinds not in ({FAIL_ON}, {REQUIRE}):
        raise UsageError(
            f"{path}: a [[rule]] has fail_on or require, and optionally name; not {table!r}"
        )
    (kind,) = kinds
    text, name = table[kind], table.get("name")
    if not isinstance(text, str) or not isinstance(name, str | None):
        raise UsageError(f"{path}: {kind} and name must be texts; not {table!r}")
    try:
        return rule_of(text, name, required=kind == REQUIRE)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


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


_EXACTLY: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_ARITHMETIC: dict[str, Callable[[Quantity, Quantity], Quantity]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_INTERVAL = "_interval"
"""Suffix of the JSON key of a figure's interval; without the suffix it is the figure's key."""
COUNTED = {("fallback", "by_reason")}
"""Objects in which a missing key counts as 0, if it is a known key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about one run on which rules are evaluated."""

    run: Mapping[str, Any]
    """Run as in the JSON report."""
    baseline: Mapping[str, Any] | None = None
    has_finding: Callable[[str], bool | None]
    """Function that returns whether a finding was made; None if the run lacks the data that it
    needs. Raises UsageError for an unknown name."""
    deciding: Callable[[str], tuple[Quantity, float] | None] = lambda name: None  # noqa: ARG005
    """Function that returns the figure that decides about a finding, and its bound; None if there
    is no single one."""
    made_of: Callable[[str], Sequence[str]] = lambda name: ()  # noqa: ARG005
    """Function that returns the ids of the findings of a severity or a worse one; nothing for any
    other name."""
    relation: Relation = field(default_factory=Relation)
    """Relation of the run's figures to the baseline's."""
    at_mix: bool = False
    """Whether figures are taken at the relation's mix of labels, as far as they are known at it."""
    countable: frozenset[str] = field(default=frozenset())
    """Known keys of the objects in COUNTED, present or not."""
    lacks: str = ""
    """Reason why many rules cannot be decided, in words; empty for a run with all of its rows."""


Values = dict[str, Quantity | str | None]
"""Figures that were read, by path; `Relation.basis` follows the path of a figure of a relation."""


def holds(condition: Condition, facts: Facts, values: Values) -> bool | None:
    """Return whether `condition` surely holds (True) or surely does not (False); the figures that
    it read are added to `values`.

    Raises UsageError for a path or a finding that does not exist.
    """
    match condition:
        case Not(of=inner):
            answer = holds(inner, facts, values)
            return None if answer is None else not answer
        case Junction(every=every, parts=parts):
            return _joined([holds(part, facts, values) for part in parts], every=every)
        case Comparison():
            return _compare(condition, facts, values)
        case Known(path=path):
            return _figure(path, facts, values) is not None
        case FindingCondition(name=name):
            answer, figure = facts.has_finding(name), facts.deciding(name)
            if made := facts.made_of(name):
                values[name] = ", ".join(made)
            if figure is not None:
                values[name], values[f"bound of {name}"] = figure[0], Quantity.exact(figure[1])
            return answer


def open_factor(condition: Condition, facts: Facts) -> float | None:
    """Return how many times as many requests would decide the comparisons that an interval leaves
    open, if the difference stays as it is; infinite if it is 0, None if no comparison is open, or
    if the baseline's own interval leaves it open."""
    match condition:
        case Not(of=inner):
            return open_factor(inner, facts)
        case Junction(parts=parts):
            factors = [open_factor(part, facts) for part in parts]
            return max((each for each in factors if each is not None), default=None)
        case Comparison():
            if facts.relation.fixed and _with_baseline(condition):
                return None
            left, right = _sides(condition, facts, {})
            if not isinstance(left, Quantity) or not isinstance(right, Quantity):
                return None
            return _open_factor(condition.sign, left - right)
        case FindingCondition(name=name):
            figure = facts.deciding(name)
            return (
                None if figure is None else _open_factor("<", figure[0] - Quantity.exact(figure[1]))
            )
    return None


def _open_factor(sign: str, apart: Quantity) -> float | None:
    if apart.is_exact or _surely(sign, apart) is not None:
        return None
    half = (apart.high - apart.low) / 2
    return float((half / apart.value) ** 2) if apart.value else math.inf


def _joined(answers: Sequence[bool | None], *, every: bool) -> bool | None:
    """Join answers by Kleene's and / or: one decisive answer decides, even if others are
    unknown."""
    if (not every) in answers:
        return not every
    return None if None in answers else every


def _compare(asked: Comparison, facts: Facts, values: Values) -> bool | None:
    left, right = _sides(asked, facts, values)
    if left is None or right is None:
        return None
    if isinstance(left, str) or isinstance(right, str):
        return _compare_texts(asked.sign, left, right)
    apart = left - right
    if apart.is_exact:
        return _EXACTLY[asked.sign](apart.value, 0.0)
    return _surely(asked.sign, apart)


def _sides(
    asked: Comparison, facts: Facts, values: Values
) -> tuple[Quantity | str | None, Quantity | str | None]:
    """Return both sides of a comparison; one with the baseline is made at the relation's mix."""
    if _with_baseline(asked):
        facts = replace(facts, at_mix=True)
    return _value(asked.left, facts, values), _value(asked.right, facts, values)


def _with_baseline(asked: Comparison) -> bool:
    return _names_baseline(asked.left) or _names_baseline(asked.right)


def _names_baseline(term: Term) -> bool:
    match term:
        case Path(baseline=baseline):
            return baseline
        case Negative(of=inner):
            return _names_baseline(inner)
        case Arithmetic(left=left, right=right):
            return _names_baseline(left) or _names_baseline(right)
    return False


def _surely(sign: str, apart: Quantity) -> bool | None:
    """Return whether an estimated difference is surely, or surely not, to 0 as `sign` says."""
    match sign:
        case "<" | "<=":
            return _decided(yes=apart.high < 0, no=apart.low > 0)
        case ">" | ">=":
            return _decided(yes=apart.low > 0, no=apart.high < 0)
    differs = apart.low > 0 or apart.high < 0
    return _decided(yes=differs and sign == "!=", no=differs and sign == "==")


def _decided(*, yes: bool, no: bool) -> bool | None:
    return True if yes else False if no else None


def _compare_texts(sign: str, left: Quantity | str, right: Quantity | str) -> bool:
    if sign not in ("==", "!=") or type(left) is not type(right):
        raise UsageError(
            f"{_value_words(left)} {sign} {_value_words(right)}: texts can only be compared with "
            "== or !="
        )
    return (left == right) is (sign == "==")


def _value_words(value: Quantity | str) -> str:
    return repr(value) if isinstance(value, str) else f"{value.value:g}"


def _value(term: Term, facts: Facts, values: Values) -> Quantity | str | None:
    match term:
        case Literal(value=value):
            return value if isinstance(value, str) else Quantity.exact(value)
        case Path():
            return _figure(term, facts, values)
        case Negative(of=inner):
            of = _number(_value(inner, facts, values))
            return None if of is None else -of
        case Arithmetic(sign=sign, left=left, right=right):
            a, b = (_number(_value(side, facts, values)) for side in (left, right))
            if a is None or b is None or (sign == "/" and b.value == 0):
                return None
            return _ARITHMETIC[sign](a, b)


def _number(value: Quantity | str | None) -> Quantity | None:
    if isinstance(value, str):
        raise UsageError(f"{value!r} is a text; arithmetic needs numbers")
    return value


def _figure(path: Path, facts: Facts, values: Values) -> Quantity | str | None:
    root = facts.baseline if path.baseline else facts.run
    if root is None:
        raise UsageError(f"{path}: there is no baseline; give --baseline RUN")
    value = _at(root, path, path.steps, facts.countable)
    name = str(replace(path, baseline=False))
    if facts.at_mix and (mixed := facts.relation.at_mix(name, baseline=path.baseline)):
        values[f"{path}{facts.relation.basis}"] = mixed
        return mixed
    estimated, spread = _spread(root, path)
    if isinstance(value, Mapping) and value.keys() == {"value", "interval"}:  # an estimate
        estimated, spread, value = True, _ends(value["interval"]), value["value"]
    if isinstance(value, Mapping | list):
        raise UsageError(f"{path}: is not a single figure; it has {_offered(value)}")
    figure: Quantity | str | None
    if value is None or isinstance(value, str):
        figure = value
    elif spread is None:
        figure = None if estimated else Quantity.exact(float(value))
    else:
        same = facts.relation.correlated.get(name)
        shared = (
            None if same is None else Shared(figure=name, baseline=path.baseline, correlation=same)
        )
        figure = Quantity(value=float(value), low=spread[0], high=spread[1], shared=shared)
    values[str(path)] = figure
    return figure


def _at(root: Any, path: Path, steps: Sequence[str | int], countable: frozenset[str]) -> Any:
    """Return the value at a path; a null on the way gives null. Raises UsageError for an impossible
    path."""
    here = root
    for at, step in enumerate(steps):
        if here is None:
            return None
        if isinstance(here, Mapping) and step in here:
            here = here[step]
        elif isinstance(here, Mapping) and tuple(steps[:at]) in COUNTED and step in countable:
            here = 0
        elif isinstance(here, list) and isinstance(step, int) and -len(here) <= step < len(here):
            here = here[step]
        elif isinstance(here, list) and (named := _labelled(here, step)) is not None:
            here = named
        else:
            extra = countable if tuple(steps[:at]) in COUNTED else frozenset()
            raise UsageError(f"{path}: there is no {step!r}; {_suggestion(here, step, extra)}")
    return here


def _labelled(here: Sequence[Any], label: str | int) -> Any:
    """Return the element with this `label` from a list of objects; None if there is none."""
    named = (each for each in here if isinstance(each, Mapping) and each.get("label") == label)
    return next(named, None)


def _spread(root: Any, path: Path) -> tuple[bool, tuple[float, float] | None]:
    """Return whether a figure is an estimate, which has a key for its interval, and the interval:
    `name_interval` for `name`, `name_interval[i]` for `name[i]`."""
    steps = list(path.steps)
    named = [at for at, step in enumerate(steps) if isinstance(step, str)]
    if not named:
        return False, None
    steps[named[-1]] = f"{steps[named[-1]]}{_INTERVAL}"
    try:
        interval = _at(root, path, steps, frozenset())
    except UsageError:
        return False, None
    return True, _ends(interval)


def _ends(interval: Any) -> tuple[float, float] | None:
    """Return the ends of an interval of a document; None if it has none."""
    if not isinstance(interval, Mapping):
        return None
    low, high = interval.get("low"), interval.get("high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return float(low), float(high)


def _suggestion(here: Any, step: str | int, extra: frozenset[str]) -> str:
    near = difflib.get_close_matches(str(step), [*map(str, _keys(here)), *extra], n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return f"{meant}there is {_offered(here, extra)}"


def _offered(here: Any, extra: frozenset[str] = frozenset()) -> str:
    if isinstance(here, Mapping):
        return ", ".join(sorted({*map(str, here), *extra})) or "nothing in it"
    if isinstance(here, list) and here:
        labels = [str(key) for key in _keys(here)]
        named = f", or {', '.join(map(repr, labels))}" if labels else ""
        return f"[0] to [{len(here) - 1}], from the end [-1]{named}"
    return "nothing below it"


def _keys(here: Any) -> Sequence[Any]:
    if isinstance(here, Mapping):
        return list(here)
    if isinstance(here, list):
        return [each["label"] for each in here if isinstance(each, Mapping) and "label" in each]
    return []


MOST_TIMES = 100.0
"""Largest multiple of the recorded requests that is worth naming."""


class Outcome(StrEnum):
    """Outcome of a rule."""

    BROKEN = "broken"
    HELD = "held"
    UNDECIDED = "undecided"
    """Outcome if the 95% interval of a comparison contains the bound, if a deciding figure is null,
    or if the run lacks the data that a finding needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Outcome of one rule for one run."""

    rule: Rule
    run: str
    outcome: Outcome
    values: Values
    wanted_requests: int | None = None
    """Number of requests that would decide it, if the figures stay as they are; None if it is
    decided, or if more than MOST_TIMES as many would be needed."""
    because: str = ""
    """Reason why nothing can be judged, if the run lacks something; empty otherwise."""

    def line(self) -> str:
        """Return one line for a log."""
        known = {p: v for p, v in self.values.items() if v is not None or not self.because}
        figures = ", ".join(_shown(path, value) for path, value in known.items())
        line = f"{self.outcome}: {self.rule} [{self.run}]{': ' if figures else ''}{figures}"
        line += f"; {self.because}" if self.because else ""
        if self.wanted_requests is None:
            return line
        return f"{line}; about {self.wanted_requests:,} requests would decide it"


def judge(rules: Sequence[Rule], runs: Iterable[tuple[str, Facts]]) -> list[Judgement]:
    """Judge every rule for every run; raises UsageError for a rule that does not fit a run."""
    return [_judge(rule, label, facts) for label, facts in runs for rule in rules]


def _judge(rule: Rule, label: str, facts: Facts) -> Judgement:
    values: Values = {}
    answer = holds(rule.condition, facts, values)
    outcome = {True: Outcome.BROKEN, False: Outcome.HELD, None: Outcome.UNDECIDED}[answer]
    wanted = _wanted_requests(rule, facts) if answer is None else None
    return Judgement(
        rule=rule,
        run=label,
        outcome=outcome,
        values=values,
        wanted_requests=wanted,
        because=facts.lacks if answer is None else "",
    )


def _wanted_requests(rule: Rule, facts: Facts) -> int | None:
    factor, requests = open_factor(rule.condition, facts), facts.run.get("requests")
    if factor is None or factor > MOST_TIMES or not isinstance(requests, int):
        return None
    return math.ceil(requests * factor)


def _shown(path: str, value: Quantity | str | None) -> str:
    if value is None:
        return f"{path}: no figure"
    if isinstance(value, str):
        return f"{path} = {value!r}"
    if value.is_exact:
        return f"{path} = {value.value:.4g}"
    return f"{path} = {value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"
