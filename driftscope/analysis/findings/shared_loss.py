"""Loss of acceptance under a label that the reference run has too."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.intervals.interval import ratio
from driftscope.analysis.statistics.multiple_comparisons import ALPHA
from driftscope.analysis.summary.run_summary import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLoss:
    """Accepted tokens that the reference run keeps under the same label."""

    label: str
    """Name of the reference run."""
    kept: float
    """Accepted tokens per round under the label over those under the other one."""


def shared_loss(reference: RunSummary | None, contrast: Contrast) -> SharedLoss | None:
    """Return the loss of the reference run between the same two labels, in the same contexts, if
    it surely loses acceptance there and `contrast` does not surely lose more. None otherwise, and
    without a reference.

    Two drafters that lose alike on the same prompts are no evidence about either of them: the
    prompts may be harder. The two intervals are treated as independent. On paired prompts they are
    correlated, and the comparison is then too cautious to say that one run loses more.
    """
    theirs = None if reference is None else _same(reference, contrast)
    if reference is None or theirs is None or theirs.p is None:
        return None
    if not (theirs.kept < 1.0 and theirs.p < ALPHA) or _loses_more(contrast, theirs):
        return None
    return SharedLoss(label=reference.label, kept=theirs.kept)


def _same(reference: RunSummary, contrast: Contrast) -> Contrast | None:
    names = contrast.first, contrast.second
    pairs = reference.groups.labels_within_context
    return next((each for each in pairs if (each.first, each.second) == names), None)


def _loses_more(mine: Contrast, theirs: Contrast) -> bool:
    """Whether the first surely keeps less than the second; True if that cannot be compared."""
    apart = ratio(mine.kept, mine.kept_interval, theirs.kept, theirs.kept_interval)
    return apart is None or apart[1].high < 1.0
