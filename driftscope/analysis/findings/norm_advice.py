"""Advice to use a drafter with norms, for runs whose drafter has none."""

from __future__ import annotations

from driftscope.analysis.summary.run_summary import RunSummary

NORM_OUTPUT, FC_NORM = "norm_output", "fc_norm"
"""Names of EAGLE-3.1's norms among the flags of a manifest."""


def has_norms(run: RunSummary) -> bool:
    """Return whether the drafter has EAGLE-3.1's norms: it cannot be advised to get them."""
    return any(run.manifest.norm_flags.get(name, False) for name in (NORM_OUTPUT, FC_NORM))


def unless_normed(run: RunSummary, advice: str, otherwise: str = "") -> str:
    """Return `advice`, which proposes EAGLE-3.1's norms, or `otherwise` for a drafter that has
    them."""
    return otherwise if has_norms(run) else advice
