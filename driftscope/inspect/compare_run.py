"""Compares a live run with the acceptance that an inspection measured offline.

The prompts of both are not known to be the same, so they are compared as independent samples. The
acceptance length alone decides; differences by depth show where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.analysis.baseline_relation import Quantity, Relation
from driftscope.analysis.compare import LENGTH, MARGINAL
from driftscope.analysis.figures.results import Acceptance, AcceptanceAtK
from driftscope.analysis.number_words import number
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.summary.run_summary import RunSummary, warmest
from driftscope.boundary.files import first_line
from driftscope.boundary.json_document import (
    INSPECTION,
    INSPECTION_COMPARISON,
    plain,
    read_document,
    text,
    written_property,
)
from driftscope.errors import MixedTraceError, UsageError
from driftscope.inspect.trial.result import TrialAcceptance as TrialAcceptance

PROMPTS = (
    "whether the prompts are the same is not known: serve those of the inspection, which its "
    "--prompts names, to exclude that they differ"
)
INDEPENDENT = (
    "the intervals are those of independent prompts: with the same prompts in both inspections "
    "they are wider than they need be"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedAcceptance:
    """Acceptance of a drafter in an inspection."""

    drafter: str
    k: int
    acceptance: TrialAcceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionDifference:
    """One figure of a run minus that of the inspection."""

    depth: int | None
    """None for the acceptance length."""
    promised: float
    served: float
    difference: float
    interval: Interval | None
    """95% interval; None if one of both figures has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionComparison:
    """Comparison of a run with an inspection."""

    drafter: str
    run: str
    k: int
    differences: tuple[InspectionDifference, ...]
    """The acceptance length first, then each depth."""
    notes: tuple[str, ...]
    """Reasons other than engine and settings for which both may differ."""
    both_inspected: bool = False
    """Whether `run` is another drafter's inspection."""

    @written_property
    def verdict(self) -> str:
        """One sentence: whether the run accepts what the inspection promises."""
        length = self.differences[0]
        figures = f"{number(length.served)} compared with {number(length.promised)} tokens a round"
        if length.interval is None:
            return f"{self.run} has too few requests to be compared: {figures}"
        ends = f"{length.interval.low:+.2f} to {length.interval.high:+.2f}"
        figures = f"{figures} (95% interval {ends})"
        first = self.drafter if self.both_inspected else "the inspection"
        if not length.interval.excludes_zero():
            return f"no difference from {first} is shown: {figures}"
        if length.difference > 0:
            return f"{self.run} accepts more than {first}: {figures}"
        if self.both_inspected:
            return f"{self.run} accepts less than {first}: {figures}"
        return (
            f"{self.run} accepts less than the inspection promises: {figures}: engine or settings "
            "are at fault, unless the prompts differ"
        )


def read_inspection(path: Path) -> InspectedAcceptance:
    """Return the acceptance in a document of `driftscope inspect --json`.

    Raises UnknownKindError for a file of something else, and UsageError for another document and
    for an inspection that did not run the drafter.
    """
    from pydantic import TypeAdapter

    try:
        document = read_document(path, INSPECTION)
        if document["trial"] is None:
            raise UsageError(f"{path}: the drafter was not run; inspect it with --target")
        found = TypeAdapter(InspectedAcceptance).validate_python(
            {"drafter": document["drafter"], **document["trial"]}
        )
        depths = len(found.acceptance.marginal), len(found.acceptance.marginal_interval)
        if depths != (found.k, found.k):
            raise ValueError(f"{depths[0]} depths at K = {found.k}")
        return found
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: is no inspection ({first_line(error)})") from error


def rounds_like(k: int) -> str:
    """Return the condition that a round meets if an inspection makes it, too: all of its K drafts
    lie within the answer, beyond which the inspection does not know the target's tokens."""
    return f"position + {k + 1} < prompt_tokens + output_tokens"


def compare_run(
    inspected: InspectedAcceptance, run: RunSummary, notes: Sequence[str] = ()
) -> InspectionComparison:
    """Compare a run's rounds of the inspection's K with the inspection; `notes` are on how the run
    was measured.

    Raises MixedTraceError for a run that drafted no such rounds.
    """
    return InspectionComparison(
        drafter=inspected.drafter,
        run=run.label,
        k=inspected.k,
        differences=tuple(_differences(inspected, at_k(run, inspected.k))),
        notes=(*notes_of(run), *notes),
    )


def compare_inspections(
    first: InspectedAcceptance, second: InspectedAcceptance
) -> InspectionComparison:
    """Compare the inspections of two drafters. Raises MixedTraceError if their K differ."""
    if first.k != second.k:
        raise MixedTraceError(f"the inspections have K = {first.k} and {second.k}; give both one K")
    return InspectionComparison(
        drafter=first.drafter,
        run=second.drafter,
        k=first.k,
        differences=tuple(_differences(first, second.acceptance)),
        notes=(INDEPENDENT,),
        both_inspected=True,
    )


def at_k(run: RunSummary, k: int) -> Acceptance | AcceptanceAtK:
    """Return the acceptance of the rounds that drafted K. Raises MixedTraceError if none did."""
    same = [part for part in run.acceptance.by_k if part.k == k]
    if same:
        return same[0]
    if run.acceptance.by_k or run.k != k:
        raise MixedTraceError(
            f"{run.label}: no round drafted K = {k}; inspect again with --k {run.k}"
        )
    return run.acceptance


def _differences(
    inspected: InspectedAcceptance, served: Acceptance | AcceptanceAtK | TrialAcceptance
) -> Iterator[InspectionDifference]:
    """Yield the difference of the acceptance length, then those by depth."""
    first = inspected.acceptance
    spread = served.marginal_interval or (None,) * inspected.k
    rows = [
        (first.mean_length, first.mean_length_interval),
        *zip(first.marginal, first.marginal_interval, strict=True),
    ]
    others = [
        (served.mean_length, served.mean_length_interval),
        *zip(served.marginal, spread, strict=True),
    ]
    for depth, ((a, a_spread), (b, b_spread)) in enumerate(zip(rows, others, strict=True)):
        yield InspectionDifference(
            depth=depth or None,
            promised=a,
            served=b,
            difference=b - a,
            interval=difference(b, b_spread, a, a_spread) if a_spread and b_spread else None,
        )


def notes_of(run: RunSummary) -> Iterator[str]:
    """Yield the reasons other than engine and settings for which a run may differ."""
    yield PROMPTS
    temperature = warmest(run)
    if temperature:
        yield f"the run sampled at temperatures up to {temperature:g}; the inspection is greedy"


def to_json(comparison: InspectionComparison) -> str:
    """Return the comparison as a document, newline at the end."""
    return text(INSPECTION_COMPARISON, comparison)


def figures_like(run: Mapping[str, Any], inspected: InspectedAcceptance) -> dict[str, Any]:
    """Return the keys of a run in the JSON report with the inspection's figures; a figure that an
    inspection does not have is null."""
    figures = plain(inspected.acceptance)
    return {
        **dict.fromkeys(run),
        "label": inspected.drafter,
        "k": inspected.k,
        "acceptance": {name: figures.get(name) for name in run["acceptance"]},
    }


def relation_to(inspected: InspectedAcceptance, run: RunSummary) -> Relation:
    """Return how a run compares with an inspection: as independent samples, by those rounds of the
    summary, which has no others than the inspection makes, that drafted its K.

    Raises MixedTraceError for a run that drafted no such rounds.
    """
    served, k = at_k(run, inspected.k), inspected.k
    spread: Sequence[Interval | None] = served.marginal_interval or (None,) * k
    named = {LENGTH: _quantity(served.mean_length, served.mean_length_interval)}
    for depth, (value, interval) in enumerate(zip(served.marginal, spread, strict=True)):
        for place in (depth, depth - k):  # counted from the first one, and from the last
            named[f"{MARGINAL}[{place}]"] = _quantity(value, interval)
    known = {name: figure for name, figure in named.items() if figure is not None}
    return Relation(run=known, basis=dict.fromkeys(known, f" over rounds of K = {k}"), fixed=True)


def _quantity(value: float, interval: Interval | None) -> Quantity | None:
    return None if interval is None else Quantity(value=value, low=interval.low, high=interval.high)
