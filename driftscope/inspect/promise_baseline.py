"""An inspection as the baseline of a gate: its figures, named like those of a run in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.analysis.baseline_relation import LENGTH, MARGINAL, Quantity, Relation
from driftscope.analysis.figures.results import Acceptance, AcceptanceAtK
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary.json_document import plain
from driftscope.inspect.promise import Promise, at_k


def figures_like(run: Mapping[str, Any], promise: Promise) -> dict[str, Any]:
    """Return the keys of a run in the JSON report with the inspection's figures; a figure that an
    inspection does not have is null."""
    figures = plain(promise)
    acceptance = {name: figures.get(name) for name in run["acceptance"]}
    return {
        **dict.fromkeys(run),
        "label": promise.drafter,
        "k": promise.k,
        "acceptance": acceptance,
    }


def relation_to(promise: Promise, run: RunSummary) -> Relation:
    """Return how a run compares with an inspection: as independent samples, by those rounds of the
    summary, which has no others than the inspection makes, that drafted its K.

    Raises MixedTraceError for a run that drafted no such rounds.
    """
    served = at_k(run, promise.k)
    return Relation(
        run=_named(served, promise.k),
        basis=f" over rounds of K = {promise.k}",
        fixed=True,
    )


def _named(served: Acceptance | AcceptanceAtK, k: int) -> dict[str, Quantity]:
    """Return figures by their path, depths also counted from the last one; figures without an
    interval are left out."""
    spread: Sequence[Interval | None] = served.marginal_interval or (None,) * k
    found = {LENGTH: _quantity(served.mean_length, served.mean_length_interval)}
    for depth, (value, interval) in enumerate(zip(served.marginal, spread, strict=True)):
        found[f"{MARGINAL}[{depth}]"] = found[f"{MARGINAL}[{depth - k}]"] = _quantity(
            value, interval
        )
    return {name: figure for name, figure in found.items() if figure is not None}


def _quantity(value: float, interval: Interval | None) -> Quantity | None:
    return None if interval is None else Quantity(value=value, low=interval.low, high=interval.high)
