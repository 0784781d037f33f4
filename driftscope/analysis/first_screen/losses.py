"""Claim about where acceptance is lost: at which depth, and under which circumstances."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.acceptance_losses import conditional_interval
from driftscope.analysis.findings.dead_drafter import NOTHING_BELOW
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.number_words import percent
from driftscope.analysis.statistics.intervals.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary

EVEN_WITHIN = 0.1
"""Equivalence margin: acceptance is even along the chain if no depth is more than this below the
first one. The published vectors of healthy drafters keep 0.8 or more of the first depth's rate."""
CIRCUMSTANCES = (
    "long_context_collapse",
    "template_sensitivity",
    "acceptance_drops",
    "structured_output_loses_drafts",
    "modes_disagree",
)
"""Findings about the circumstances in which acceptance is lost."""
KIND_OF_TEXT = "region_costs"
"""Finding that is told and changes no answer: kinds of text differ for any drafter."""


def losses(run: RunSummary, findings: Sequence[Finding]) -> Claim | None:
    """Return whether acceptance is even along the chain, and the circumstances that the findings
    name; None for a dead drafter, which loses everything everywhere."""
    if run.acceptance.marginal[0] < NOTHING_BELOW:
        return None
    answer, sentence, depth = _along_chain(run)
    named = [finding for finding in findings if _names_a_place(finding, run)]
    parts = [sentence, *(_first_clause(finding.statement) for finding in named)]
    parts += [
        finding.statement.partition(";")[0]
        for finding in findings
        if finding.id == KIND_OF_TEXT and _is_known(finding, run)
    ]
    return Claim(
        topic=Topic.LOSSES,
        run=run.label,
        question="Is acceptance even along the chain and over the circumstances?",
        answer=Answer.NO if named else answer,
        sentence="; ".join(part for part in parts if part),
        estimate=None if depth is None else run.acceptance.conditional[depth - 1],
        interval=None if depth is None else _at(run, depth),
        record="record more requests" if answer is Answer.CANNOT_TELL and not named else "",
    )


def _names_a_place(finding: Finding, run: RunSummary) -> bool:
    acts = finding.severity in (Severity.HIGH, Severity.MEDIUM)
    return acts and finding.id in CIRCUMSTANCES and _is_known(finding, run)


def _is_known(finding: Finding, run: RunSummary) -> bool:
    return finding.confidence is not Trust.LOW and run.label in finding.runs


def _first_clause(statement: str) -> str:
    return statement.partition(": ")[0]


def _along_chain(run: RunSummary) -> tuple[Answer, str, int | None]:
    """Return the answer for the depths, its words, and the depth at which most is lost."""
    if run.k == 1:
        return Answer.FIGURE, f"{_rate(run, 1)} of the draft tokens are accepted", 1
    first, others = _at(run, 1), [_at(run, depth) for depth in range(2, run.k + 1)]
    reached = [(d, at) for d, at in enumerate(others, start=2) if at is not None]
    if first is None or not reached:
        return Answer.CANNOT_TELL, f"{_rate(run, 1)} of the rounds are accepted to depth 1", None
    lower = [depth for depth, at in reached if at.high < first.low]
    if lower:
        depth = max(lower, key=lambda each: tokens_lost(run, each))
        return Answer.NO, _falls(run, depth), depth
    ends = (
        f"{_rate(run, 1)} of the draft tokens are accepted at depth 1, {_rate(run, run.k)} at "
        f"depth {run.k}"
    )
    if all(at.low > first.high - EVEN_WITHIN for _, at in reached):
        return Answer.YES, f"acceptance is even along the chain: {ends}", None
    return Answer.CANNOT_TELL, f"no depth stands out: {ends}", None


def _falls(run: RunSummary, depth: int) -> str:
    return (
        f"acceptance falls along the chain, most at depth {depth}: {_rate(run, depth)} of the "
        f"draft tokens there are accepted, {_rate(run, 1)} at depth 1"
    )


def tokens_lost(run: RunSummary, depth: int) -> float:
    """Return the tokens per round that a depth costs, compared with a chain that accepts every
    depth like the first: those that end there, and what would have followed them."""
    first, here = run.acceptance.marginal[0], run.acceptance.conditional[depth - 1]
    reach = 1.0 if depth == 1 else run.acceptance.marginal[depth - 2]
    follows = sum(first**more for more in range(run.k - depth + 1))
    return 0.0 if here is None else reach * (first - here) * follows


def _rate(run: RunSummary, depth: int) -> str:
    return percent(run.acceptance.conditional[depth - 1])


def _at(run: RunSummary, depth: int) -> Interval | None:
    """Return the interval of the conditional rate at a depth."""
    if depth > 1:
        return conditional_interval(run, depth)
    spread = run.acceptance.marginal_interval
    return spread[0] if spread else None
