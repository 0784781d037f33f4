"""Circumstances other than drafter and K in which two runs differ, and which may explain a
difference."""

from __future__ import annotations

from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import listed
from driftscope.analysis.summary.run_summary import RunSummary

CHOSEN = ("drafter", "K")
"""Names of the ways in which runs differ on purpose if drafters or K are compared."""
SAME_LOAD = 1.2
"""Largest ratio of two runs' mean batch sizes at which their load counts as equal: a faster server
finishes its requests sooner, so that equal load need not mean equal batches."""


def confounders(case: Case) -> list[str]:
    """Return what else differs between a run and the one that it is compared with; "prompts" if
    their rounds cannot be compared."""
    comparison = case.comparison
    if comparison is None:
        return ["prompts"]
    others = [each for each in comparison.unlike if each.split(" ")[0] not in CHOSEN]
    load = None if case.reference is None else _load(case.reference, case.run)
    return [*others, *([load] if load else [])]


def _load(first: RunSummary, second: RunSummary) -> str | None:
    """Return in words how the loads differ; None if they are alike or not known."""
    batches = [_mean_batch(run) for run in (first, second)]
    if batches[0] is None or batches[1] is None:
        return None
    ratio = max(batches[0], batches[1]) / min(batches[0], batches[1])
    return (
        f"load (batches of {batches[0]:.1f} against {batches[1]:.1f})"
        if ratio > SAME_LOAD
        else None
    )


def _mean_batch(run: RunSummary) -> float | None:
    steps = sum(cell.steps for cell in run.cells)
    return sum(cell.steps * cell.batch for cell in run.cells) / steps if steps else None


def doubt(others: list[str]) -> str:
    """Return a clause about the confounders; "" if there are none."""
    return f", but the runs also differ in {listed(others)}" if others else ""


def to_match(others: list[str]) -> str:
    """Return what to record so that nothing but drafter and K differs."""
    return f"record both runs with the same {listed([each.split(' ')[0] for each in others])}"
