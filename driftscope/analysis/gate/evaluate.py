"""Evaluation of a rule's condition for a run's figures.

There are three answers. A comparison is true if it holds over the whole 95% interval of its
difference, false if the opposite does, and None if the interval contains 0: then noise could decide
either way. It is None, too, if a deciding figure is null, or an estimate without an interval.
Figures that are counted, and have no interval, are compared as they are.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from driftscope.analysis.gate.baseline_relation import Relation
from driftscope.analysis.gate.expression import (
    Arithmetic,
    Comparison,
    Condition,
    FindingCondition,
    Junction,
    Known,
    Literal,
    Negative,
    Not,
    Path,
    Term,
)
from driftscope.analysis.gate.quantity import Quantity, Shared
from driftscope.errors import UsageError

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
    ends = (
        (interval.get("low"), interval.get("high")) if isinstance(interval, Mapping) else interval
    )
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        return True, None
    low, high = ends
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return True, None
    return True, (float(low), float(high))


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
