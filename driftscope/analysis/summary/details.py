"""Details of a run: what is queried once its sums are known."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.circumstances import Groups, groups_of, loops_of, text_rounds
from driftscope.analysis.closeup import CloseUp, closeup_of
from driftscope.analysis.figures.attention_drift import attention_drift
from driftscope.analysis.figures.change_points import Changes, changes_of
from driftscope.analysis.figures.results import Segment
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.side import Side, side_of
from driftscope.analysis.figures.steps import StepTimes, step_times
from driftscope.analysis.figures.verified_chains import (
    Verification,
    WithinRequest,
    verification_of,
    within_requests,
)
from driftscope.analysis.statistics.drift import AttentionDrift
from driftscope.analysis.summary.length_by_k import LengthAtK, lengths_by_k
from driftscope.analysis.summary.segments import BY_LABEL, segments_by, segments_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Details:
    """Figures that a summary has in addition to sums. No query runs after they have been
    collected."""

    verification: Verification
    times: StepTimes
    groups: Groups
    closeup: CloseUp
    segments: tuple[Segment, ...]
    lengths_by_k: tuple[LengthAtK, ...]
    within_request: tuple[WithinRequest, ...]
    side: Side
    """Rounds by request, in the form in which runs are compared."""
    changes: Changes | None
    """Changes over time; None if too few requests were recorded whole."""
    attention_drift: AttentionDrift | None


def details_of(run: Sums, by: str = BY_LABEL) -> Details:
    """Collect the details of a run, split `by` a key of `driftscope.analysis.query.row_filters.BY`
    or a span of time. Raises UsageError for an unknown way to split."""
    verification = verification_of(run)  # stores the chains that `within_requests` reads
    times, lengths = step_times(run.tables), lengths_by_k(run)
    within, drift = within_requests(run), attention_drift(run, run.clusters)
    run.chain_sums.begin()  # the longest query, beside what follows up to `groups`
    by_text, loops = text_rounds(run), loops_of(run)
    closeup = closeup_of(run)
    whole = run.cohort is None or run.cohort.enough
    return Details(
        verification=verification,
        times=times.value,
        lengths_by_k=lengths.value,
        within_request=within.value,
        side=side_of(run),
        changes=changes_of(run, by_batch=run.in_batch.value) if whole else None,
        groups=groups_of(
            run,
            by_batch=run.in_batch.value,
            by_execution=verification.by_execution,
            by_text=by_text,
            loops=loops,
        ),
        closeup=closeup.value,
        segments=segments_of(run) if by == BY_LABEL else segments_by(run, by),
        attention_drift=drift.value,
    )
