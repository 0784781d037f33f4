"""Figures of the chains recorded in each situation of an engine, against the float64 reference."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from support.engine_process.job import Outcome

from verification.situations import asks_of
from verification.situations_truth import Compared, compared


@dataclass(frozen=True, kw_only=True)
class SituationFigures:
    """Chains of one situation."""

    situation: str
    lengths: list[int]
    """Lengths K of the chains."""
    chains: int
    right: int
    """Chains in whose context every slot was filled: those that are compared."""
    drafted_equal: int
    judged: int
    """Compared chains of which the output says how many tokens are accepted."""
    accepted_equal: int
    mass_error: float
    """Largest error of a mass, absolute; NaN if none is compared."""
    rms_error: float
    """Largest error of an RMS, relative."""
    wrong: int
    """Chains with slots that hold a wrong token or none."""
    flagged: int
    """Those of them that the trace flags."""


def figures_of(outcome: Outcome) -> list[SituationFigures]:
    """Return the figures of each situation that the engine ran."""
    by_situation: defaultdict[str, list[Compared]] = defaultdict(list)
    for chain in compared(outcome, asks_of(outcome.job)):
        by_situation[chain.name.rstrip("0123456789")].append(chain)
    return [_figures(name, mine) for name, mine in by_situation.items()]


def _figures(situation: str, mine: list[Compared]) -> SituationFigures:
    wrong = [chain for chain in mine if chain.wrong or chain.empty]
    right = [chain for chain in mine if not chain.empty]
    judged = [chain for chain in right if chain.judged]
    return SituationFigures(
        situation=situation,
        lengths=sorted({chain.row["k"] for chain in mine}),
        chains=len(mine),
        right=len(right),
        drafted_equal=sum(chain.drafted_equal for chain in right),
        judged=len(judged),
        accepted_equal=sum(chain.accepted_equal for chain in judged),
        mass_error=max((chain.mass_error for chain in right), default=math.nan),
        rms_error=max((chain.rms_error for chain in right), default=math.nan),
        wrong=len(wrong),
        flagged=sum(chain.row["chunked_prefill"] for chain in wrong),
    )


def answered_alike(on: Outcome, off: Outcome) -> list[bool]:
    """Return for each request of two engines whether it got the same answer."""
    return [
        first["requests"][name] == second["requests"][name]
        for first, second in zip(on.batches, off.batches, strict=True)
        for name in first["requests"]
    ]
