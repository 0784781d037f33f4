"""Shares of decode steps in which speculation gave nothing: two kinds, which are never added up.

A step here is one decode step of one request (a VerifyRow): steps = rounds + undrafted steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.boundary.json_document import written_property
from driftscope.metrics.definition import Definition
from driftscope.vocabulary import UndraftedReason

REJECTED = Definition(
    name="fallback.rejected_rounds",
    title="Rejected rounds",
    meaning="Rounds in which the target accepted no draft token and only its own token was used, "
    "as a share of all decode steps.",
    unit="1",
    range="0 to 1",
    source="driftscope",
)
UNDRAFTED = Definition(
    name="fallback.undrafted",
    title="Undrafted steps",
    meaning="Decode steps in which no draft token was verified, by reason, as a share of all "
    "decode steps. Intended ones (a setting asked for it) are counted separately.",
    unit="1",
    range="0 to 1",
    source="driftscope",
)
EFFECTIVE_K = Definition(
    name="fallback.effective_k",
    title="Effective K",
    meaning="Draft tokens verified per decode step of a request, including steps without a draft.",
    unit="{token}",
    range="0 to K",
    source="driftscope",
)
UNKNOWN = "unknown"
"""Reason reported for an undrafted step that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Counts of decode steps; a step is counted once per request."""

    steps: int
    rejected_rounds: int
    undrafted: int
    by_reason: dict[str, int]
    """Undrafted steps by reason, sorted by name."""
    drafts: int = 0
    """Drafts, whether or not any of their tokens were verified."""
    cut: dict[str, int] = field(default_factory=dict)
    """Drafts of which fewer tokens were verified than drafted, by reason, sorted by name."""

    @written_property
    def deliberate(self) -> int:
        """Number of undrafted steps that a setting asked for."""
        return sum(self.by_reason.get(reason, 0) for reason in UndraftedReason.DELIBERATE)

    @written_property
    def counted(self) -> int:
        """Number of undrafted steps that an engine may count as drafts with nothing accepted."""
        return sum(self.by_reason.get(reason, 0) for reason in UndraftedReason.COUNTED)

    @written_property
    def cut_share(self) -> float:
        """Drafts that were cut over all drafts; 0 without drafts."""
        return sum(self.cut.values()) / self.drafts if self.drafts else 0.0

    @written_property
    def rejected_share(self) -> float:
        """Rejected rounds over all steps; 0 without steps."""
        return self.rejected_rounds / self.steps if self.steps else 0.0

    @written_property
    def undrafted_share(self) -> float:
        """Undrafted steps over all steps; 0 without steps."""
        return self.undrafted / self.steps if self.steps else 0.0


def effective_k(verified: int, steps: int) -> float | None:
    """Return verified draft tokens over decode steps; None without decode steps."""
    return verified / steps if steps else None


def fallback(rejected_rounds: int, rounds: int, reasons: Mapping[str | None, int]) -> Fallback:
    """Return the fallback counts of a run; `reasons` counts its undrafted steps by reason."""
    by_reason: Counter[str] = Counter()
    for reason, count in reasons.items():
        by_reason[reason or UNKNOWN] += count
    undrafted = sum(by_reason.values())
    return Fallback(
        steps=rounds + undrafted,
        rejected_rounds=rejected_rounds,
        undrafted=undrafted,
        by_reason=dict(sorted(by_reason.items())),
    )
