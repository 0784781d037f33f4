"""The gate: it evaluates every rule for every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from driftscope.analysis.gate.evaluate import Facts, Values, holds, open_factor
from driftscope.analysis.gate.quantity import Quantity
from driftscope.analysis.gate.rule import Rule

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
