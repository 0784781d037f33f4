"""The catalogue of findings: which rules are asked, and in which order their answers stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.rules import acceptance, attention, hidden_state, pairs, speed
from driftscope.analysis.summary import RunSummary

RUN_RULES: tuple[Callable[[RunSummary], Finding | None], ...] = (
    hidden_state.hidden_state_grows,
    attention.sink_lost,
    acceptance.acceptance_dies,
    attention.attention_moves_to_chain,
    speed.smaller_k,
    attention.no_sink,
    hidden_state.hidden_state_stable,
)
"""Each looks at one run. Order within a severity: what the paper calls the cause comes first."""

PAIR_RULES: tuple[Callable[[RunSummary, RunSummary], Finding | None], ...] = (pairs.runs_part,)
"""Each compares the first run with one other."""


def findings_of(runs: Sequence[RunSummary]) -> tuple[Finding, ...]:
    """Every finding about `runs`, worst first."""
    found = [rule(run) for rule in RUN_RULES for run in runs]
    found += [rule(runs[0], other) for rule in PAIR_RULES for other in runs[1:]]
    return in_order([f for f in found if f])


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Worst first, else as they came."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda f: order.index(f.severity)))
