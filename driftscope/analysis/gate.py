"""The gate: rules of `driftscope check`, and their evaluation for a run's figures.

`driftscope.analysis.conditions` has the language. There are three answers. A comparison is true if
it holds over the whole 95% interval of its difference, false if the opposite does, and None if the
interval contains 0: then noise could decide either way. It is None, too, if a deciding figure is
null, or an estimate without an interval. Figures that are counted, and have no interval, are
compared as they are.
"""

from __future__ import annotations

import difflib
import math
import operator
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlglot import exp

from driftscope.analysis.baseline_relation import Quantity, Relation
from driftscope.analysis.comparability import Claim
from driftscope.analysis.conditions import (
    ARITHMETIC,
    BASELINE,
    COMPARISONS,
    KNOWN,
    NO_WORSE,
    RULES,
    is_finding,
    number_of,
    steps_of,
    tree_of,
)
from driftscope.analysis.number_words import listed
from driftscope.analysis.speed import with_run_effect
from driftscope.analysis.statistics.intervals import FOR_POWER, Interval
from driftscope.analysis.validity import RUN_EFFECT
from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.files import first_line, read_text
from driftscope.errors import UsageError

FAIL_ON, REQUIRE = "fail_on", "require"
MOST_TIMES = 100.0
"""Largest multiple of the recorded requests that is worth naming."""
_INTERVAL = "_interval"
"""Suffix of the JSON key of a figure's interval; without the suffix it is the figure's key."""
_SECONDS = "_s"
"""Ending of the names of times, of which less is better."""
COUNTED = {("fallback", "by_reason"), ("fallback", "cut")}
"""Objects in which a missing key counts as 0, if it is a known key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule, which is broken if its condition surely holds and kept if it surely does not; the
    other way round if it is `required`."""

    text: str
    """Text of the rule as it was given."""
    condition: exp.Expression = field(repr=False, compare=False)
    """Checked tree, see `conditions.tree_of`."""
    required: bool = False
    name: str | None = None
    """Name that its author gave it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.text})" if self.name else self.text

    @property
    def finding(self) -> str | None:
        """Finding or severity that the rule consists of; None for any other condition."""
        return None if self.required else _finding(self.condition)


def rule_of(text: str, name: str | None = None, *, required: bool = False) -> Rule:
    """Return the rule that the condition `text` must not hold or, if it is `required`, must; raises
    UsageError if it cannot be read."""
    try:
        tree = tree_of(text, RULES)
    except UsageError as error:
        raise UsageError(f"rule {text!r}: cannot be read: {error}") from error
    return Rule(text=text.strip(), condition=tree, name=name, required=required)


def read_rules(path: Path) -> list[Rule]:
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
    if not all(isinstance(value, list) for value in (*lists.values(), tables)):
        raise UsageError(
            f"{path}: fail_on and require must be lists of texts, and each [[rule]] a table"
        )
    rules = [_rule(path, {name: text}) for name, texts in lists.items() for text in texts]
    return rules + [_rule(path, table) for table in tables]


def _rule(path: Path, table: Any) -> Rule:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
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
    needs: Callable[[str], str] = lambda name: ""  # noqa: ARG005
    """Function that returns what a finding needs and the run lacks, in words; "" if nothing."""
    made_of: Callable[[str], Sequence[str]] = lambda name: ()  # noqa: ARG005
    """Function that returns the ids of the findings of a severity or a worse one; nothing for any
    other name."""
    relation: Relation = field(default_factory=Relation)
    """Relation of the run's figures to the baseline's."""
    compared: bool = False
    """Whether figures are taken as the relation compares them, as far as they are known so."""
    countable: frozenset[str] = field(default=frozenset())
    """Known keys of the objects in COUNTED, present or not."""
    lacks: str = ""
    """Reason why many rules cannot be decided, in words; empty for a run with all of its rows."""
    decides: bool = True
    """Whether any rule can be decided about the run."""


Values = dict[str, Quantity | str | None]
"""Figures that were read, by path; `Relation.basis` follows the path of a figure of a relation."""


def holds(
    node: exp.Expression, facts: RunFacts, values: Values, factors: list[float]
) -> bool | None:
    """Return whether a condition surely holds (True) or surely does not (False). The figures that
    it read are added to `values`, and of each comparison that an interval leaves open, to
    `factors`, how many times as many requests would decide it if the difference stays as it is:
    infinite if it is 0; none where the baseline's own interval leaves it open.

    Raises UsageError for a path or a finding that does not exist.
    """
    if isinstance(node, exp.Paren):
        return holds(node.this, facts, values, factors)
    if isinstance(node, exp.Not):
        answer = holds(node.this, facts, values, factors)
        return None if answer is None else not answer
    if isinstance(node, exp.And | exp.Or):
        answers = [holds(part, facts, values, factors) for part in node.flatten()]
        every = isinstance(node, exp.And)
        if (not every) in answers:
            return not every
        return None if None in answers else every
    if (name := _finding(node)) is not None:
        answer, figure = facts.has_finding(name), facts.deciding(name)
        if finding := facts.made_of(name):
            values[name] = ", ".join(finding)
        if figure is not None:
            bound = Quantity.exact(figure[1])
            values[name], values[f"bound of {name}"] = figure[0], bound
            _surely(operator.lt, figure[0] - bound, factors)
        return answer
    if isinstance(node, exp.Anonymous) and node.name == KNOWN:
        return _figure(node.expressions[0], facts, values) is not None
    comparison = _comparison(node, facts, values)
    if comparison is None:
        return None
    compares, left, right = comparison
    if isinstance(left, str) or isinstance(right, str):
        if compares not in (operator.eq, operator.ne) or type(left) is not type(right):
            raise UsageError(
                f"{_value_words(left)} and {_value_words(right)}: texts can only be compared with "
                "other texts, by = or !="
            )
        return bool(compares(left, right))
    fixed = facts.relation.fixed and _names_baseline(node)
    return _surely(compares, left - right, [] if fixed else factors)


_Compares = Callable[[Any, Any], Any]
"""One of `conditions.COMPARISONS`."""


def _finding(node: exp.Expression) -> str | None:
    """Return the finding or severity that a condition consists of; None for any other one."""
    return str(node.unnest().name) if is_finding(node) else None


def _comparison(
    node: exp.Expression, facts: RunFacts, values: Values
) -> tuple[_Compares, Quantity | str, Quantity | str] | None:
    """Return what compares, and both sides; None if one is not known. A comparison with the
    baseline is that of the relation, and None if anything else can explain a difference."""
    if _names_baseline(node):
        facts = replace(facts, compared=True)
    if isinstance(node, exp.Anonymous):
        figure, margin = node.expressions
        # The comparison that a run's figure is less than `margin` worse than the
        # baseline's, which is a ratio, so that the errors of paired prompts cancel.
        margin = float(number_of(margin))
        steps = steps_of(figure)
        ours, theirs = (
            _number(_figure_at(FigurePath(steps=steps, baseline=baseline), facts, values))
            for baseline in (False, True)
        )
        if ours is None or theirs is None or theirs.value == 0 or _unsettled(figure, facts):
            return None
        names = [step for step in steps if isinstance(step, str)]
        if names[-1].endswith(_SECONDS):
            return operator.le, ours / theirs, Quantity.exact(1.0 + margin)
        return operator.ge, ours / theirs, Quantity.exact(1.0 - margin)
    left, right = (_evaluated(side, facts, values) for side in (node.this, node.expression))
    if left is None or right is None or _unsettled(node, facts):
        return None
    return COMPARISONS[type(node)], left, right


def _names_baseline(node: exp.Expression) -> bool:
    """Whether a comparison names a figure of the baseline."""
    if isinstance(node, exp.Anonymous):
        return bool(node.name == NO_WORSE)
    return any(column.parts[0].name == BASELINE for column in node.find_all(exp.Column))


LATENCY = "latency"
"""First step of the paths of a run's times."""
_CLAIMS = {"acceptance": Claim.ACCEPTANCE, "segments": Claim.ACCEPTANCE, LATENCY: Claim.SPEED}
"""Claims about two runs that a figure is about, by the first step of its path."""


def _unsettled(node: exp.Expression, facts: RunFacts) -> str:
    """Return what else can explain that figures of a comparison differ from the baseline's, and
    what to record instead; "" if nothing can."""
    columns = [column.parts[:2] for column in node.find_all(exp.Column)]
    steps = {part.name for parts in columns for part in parts}
    claims = dict.fromkeys(_CLAIMS[step] for step in _CLAIMS if step in steps)
    comparability = facts.relation.comparability
    for claim in claims:
        if explaining := comparability.explaining(claim):
            return (
                f"the runs also differ in {listed([found.words for found in explaining])}. "
                f"{comparability.settle(claim)}"
            )
    return ""


def _surely(compares: _Compares, apart: Quantity, factors: list[float]) -> bool | None:
    """Return whether an estimated difference surely compares to 0 so, or surely not; see
    `holds`."""
    if apart.is_exact:
        return bool(compares(apart.value, 0.0))
    below, above = apart.high < 0, apart.low > 0
    if below or above:
        return bool(compares(-1.0 if below else 1.0, 0.0))
    half = (apart.high - apart.low) / 2
    factors.append(float((half / apart.value) ** 2 * FOR_POWER) if apart.value else math.inf)
    return None


def _value_words(value: Quantity | str) -> str:
    return repr(value) if isinstance(value, str) else f"{value.value:g}"


def _evaluated(node: exp.Expression, facts: RunFacts, values: Values) -> Quantity | str | None:
    if isinstance(node, exp.Paren):
        return _evaluated(node.this, facts, values)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else Quantity.exact(float(number_of(node)))
    if isinstance(node, exp.Neg):
        value = _number(_evaluated(node.this, facts, values))
        return None if value is None else -value
    if type(node) not in ARITHMETIC:
        return _figure(node, facts, values)
    a, b = (_number(_evaluated(side, facts, values)) for side in (node.this, node.expression))
    if a is None or b is None or (isinstance(node, exp.Div) and b.value == 0):
        return None
    return ARITHMETIC[type(node)](a, b)  # type: ignore[no-any-return]


def _number(value: Quantity | str | None) -> Quantity | None:
    if isinstance(value, str):
        raise UsageError(f"{value!r} is a text; arithmetic needs numbers")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePath:
    """Path of a figure in a run's JSON."""

    steps: tuple[str | int, ...]
    baseline: bool = False

    def __str__(self) -> str:
        out = BASELINE if self.baseline else ""
        for step in self.steps:
            plain = isinstance(step, str) and step.isidentifier()
            out += (f".{step}" if out else f"{step}") if plain else f"[{step!r}]"
        return out


def _figure(node: exp.Expression, facts: RunFacts, values: Values) -> Quantity | str | None:
    steps = steps_of(node)
    if steps[0] == BASELINE and len(steps) > 1:
        return _figure_at(FigurePath(steps=steps[1:], baseline=True), facts, values)
    return _figure_at(FigurePath(steps=steps), facts, values)


def _figure_at(path: FigurePath, facts: RunFacts, values: Values) -> Quantity | str | None:
    root = facts.baseline if path.baseline else facts.run
    if root is None:
        raise UsageError(f"{path}: there is no baseline; give --baseline RUN")
    value = _value_at_path(root, path, path.steps, facts.countable)
    name = str(replace(path, baseline=False))
    is_time = facts.compared and path.steps[0] == LATENCY and name.endswith(_SECONDS)
    if facts.compared and (known := facts.relation.compared(name, baseline=path.baseline)):
        known = _of_one_start(known) if is_time else known
        values[f"{path}{facts.relation.basis.get(name, '')}"] = known
        return known
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
        figure = Quantity(value=float(value), low=spread[0], high=spread[1])
        figure = _of_one_start(figure) if is_time else figure
    values[str(path)] = figure
    return figure


def _of_one_start(time_s: Quantity) -> Quantity:
    """Return a time of a server that was started once, which differs by the run effect if it is
    started again."""
    ends = Interval.between(time_s.low, time_s.high)
    if ends is None or not 0 < ends.low <= time_s.value <= ends.high:
        return time_s
    ends = with_run_effect(time_s.value, ends, effect=RUN_EFFECT / math.sqrt(2.0))
    return replace(time_s, low=ends.low, high=ends.high)


def _value_at_path(
    root: Any, path: FigurePath, steps: Sequence[str | int], countable: frozenset[str]
) -> Any:
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
    named = (item for item in here if isinstance(item, Mapping) and item.get("label") == label)
    return next(named, None)


def _spread(root: Any, path: FigurePath) -> tuple[bool, tuple[float, float] | None]:
    """Return whether a figure is an estimate, which has a key for its interval, and the interval:
    `name_interval` for `name`, `name_interval[i]` for `name[i]`."""
    steps = list(path.steps)
    named = [at for at, step in enumerate(steps) if isinstance(step, str)]
    if not named:
        return False, None
    steps[named[-1]] = f"{steps[named[-1]]}{_INTERVAL}"
    try:
        interval = _value_at_path(root, path, steps, frozenset())
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
        return [item["label"] for item in here if isinstance(item, Mapping) and "label" in item]
    return []


class RuleResult(StrEnum):
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
    outcome: RuleResult
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
        wanted = f"about {self.wanted_requests:,} requests would decide it"
        return f"{line}; {wanted} in four of five recordings"


def judge(rules: Sequence[Rule], runs: Iterable[tuple[str, RunFacts]]) -> list[Judgement]:
    """Judge every rule for every run; raises UsageError for a rule that does not fit a run."""
    return [_judge(rule, label, facts) for label, facts in runs for rule in rules]


def _judge(rule: Rule, label: str, facts: RunFacts) -> Judgement:
    values: Values = {}
    factors: list[float] = []
    answer = holds(rule.condition, facts, values, factors)
    if not facts.decides:
        answer = None
    broken = None if answer is None else answer is not rule.required
    outcome = {True: RuleResult.BROKEN, False: RuleResult.HELD, None: RuleResult.UNDECIDED}[broken]
    factor, requests, wanted = max(factors, default=math.inf), facts.run.get("requests"), None
    if answer is None and facts.decides and factor <= MOST_TIMES and isinstance(requests, int):
        wanted = math.ceil(requests * factor)
    nodes = list(rule.condition.walk())
    reasons = [
        *(facts.needs(node.name) for node in nodes if facts.decides and is_finding(node)),
        facts.lacks,
        *(
            _unsettled(node, facts)
            for node in nodes
            if isinstance(node, (*COMPARISONS, exp.Anonymous)) and _names_baseline(node)
        ),
    ]
    return Judgement(
        rule=rule,
        run=label,
        outcome=outcome,
        values=values,
        wanted_requests=wanted,
        because=next(filter(None, reasons), "") if answer is None else "",
    )


def _shown(path: str, value: Quantity | str | None) -> str:
    if value is None:
        return f"{path}: no figure"
    if isinstance(value, str):
        return f"{path} = {value!r}"
    if value.is_exact:
        return f"{path} = {value.value:.4g}"
    return f"{path} = {value.value:.4g} [{value.low:.4g}, {value.high:.4g}]"
