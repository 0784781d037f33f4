"""The run with which the speed of the others is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driftscope.analysis.closeup import Distribution
from driftscope.analysis.figures.results import Latency
from driftscope.pipeline import Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Speed of the baseline, whether it speculates or not."""

    label: str
    latency: Latency
    durations: Mapping[str, Distribution]


def baseline_in(analysis: Analysis) -> Baseline | None:
    """Return the given baseline; None without one, or if it is one of the runs."""
    for case in analysis.cases:
        if case.plain is not None:
            return Baseline(
                label=case.plain.label, latency=case.plain.latency, durations=case.plain.durations
            )
    shown = {run.label for run in analysis.runs}
    for case in analysis.cases:
        reference = case.reference
        if reference is not None and reference.label not in shown:
            return Baseline(
                label=reference.label,
                latency=reference.latency,
                durations=reference.closeup.durations if reference.closeup else {},
            )
    return None
