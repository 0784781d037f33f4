"""Claim about a run whose tokens are wrong."""

from __future__ import annotations

from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.summary.run_summary import RunSummary


def wrong_tokens(run: RunSummary) -> Claim:
    """Return that nothing can be concluded from a run whose tokens are wrong."""
    return Claim(
        topic=Topic.ACCEPTANCE,
        run=run.label,
        question="Are the tokens right?",
        answer=Answer.NO,
        sentence="the engine returns wrong tokens at temperature > 0: this run says nothing about "
        "the drafter",
    )
