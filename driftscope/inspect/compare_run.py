"""Compares a live run with the acceptance that an inspection measured offline.

The prompts of both are not known to be the same, so they are compared as independent samples. The
acceptance length alone decides; differences by depth show where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.analysis.baseline_relation import LENGTH, MARGINAL, Quantity, Relation
from driftscope.analysis.figures.results import Acceptance, AcceptanceAtK
from driftscope.analysis.number_words import number
from driftscope.analysis.statistics.intervals import Interval, difference
from driftscope.analysis.summary.run_summary import RunSummary, warmest
from driftscope.boundary.files import first_line, read_json
from driftscope.boundary.json_document import INSPECTION, PROMISE, SCHEMA_VERSION, plain, text
from driftscope.errors import MixedTraceError, UsageError

PROMPTS = (
    "whether the prompts are the same is not known: serve those of the inspection, which its "
    "--prompts names, to exclude that they differ"
)
INDEPENDENT = (
    "the intervals are those of independent prompts: with the same prompts in both inspections "
    "they are wider than they need be"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Acceptance of a drafter in an inspection."""

    drafter: str
    k: int
    mean_length: float
    mean_length_interval: Interval | None
    marginal: tuple[float, ...]
    marginal_interval: tuple[Interval | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseDifference:
    """One figure of a run minus that of the inspection."""

    depth: int | None
    """None for the acceptance length."""
    promised: float
    served: float
    difference: float
    interval: Interval | None
    """95% interval; None if one of both figures has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseComparison:
    """Comparison of a run with an inspection."""

    drafter: str
    run: str
    k: int
    differences: tuple[PromiseDifference, ...]
    """The acceptance length first, then each depth."""
    notes: tuple[str, ...]
    """Reasons other than engine and settings for which both may differ."""
    both_inspected: bool = False
    """Whether `run` is another drafter's inspection."""

    @property
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


def read_promise(path: Path) -> Promise:
    """Return the acceptance in a document of `driftscope inspect --json`.

    Raises UsageError for another file, and for an inspection that did not run the drafter.
    """
    try:
        document = read_json(path)
        if (document["kind"], document["schema_version"]) != (INSPECTION, SCHEMA_VERSION):
            raise UsageError(f"{path}: is no document of `driftscope inspect --json`")
        if document["trial"] is None:
            raise UsageError(f"{path}: the drafter was not run; inspect it with --target")
        return _promise(document["drafter"], document["trial"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: is no inspection ({first_line(error)})") from error


def _promise(drafter: str, trial: Mapping[str, Any]) -> Promise:
    found = trial["acceptance"]
    promise = Promise(
        drafter=str(drafter),
        k=int(trial["k"]),
        mean_length=float(found["mean_length"]),
        mean_length_interval=_interval(found["mean_length_interval"]),
        marginal=tuple(float(each) for each in found["marginal"]),
        marginal_interval=tuple(_interval(each) for each in found["marginal_interval"]),
    )
    if not promise.k == len(promise.marginal) == len(promise.marginal_interval):
        raise ValueError(f"{len(promise.marginal)} depths at K = {promise.k}")
    return promise


def _interval(ends: Mapping[str, float] | None) -> Interval | None:
    return None if ends is None else Interval.of(float(ends["low"]), float(ends["high"]))


def rounds_like(k: int) -> str:
    """Return the condition that a round meets if an inspection makes it, too: all of its K drafts
    lie within the answer, beyond which the inspection does not know the target's tokens."""
    return f"position + {k + 1} < prompt_tokens + output_tokens"


def compare_with_promise(
    promise: Promise, run: RunSummary, notes: Sequence[str] = ()
) -> PromiseComparison:
    """Compare a run's rounds of the inspection's K with the inspection; `notes` are on how the run
    was measured.

    Raises MixedTraceError for a run that drafted no such rounds.
    """
    return PromiseComparison(
        drafter=promise.drafter,
        run=run.label,
        k=promise.k,
        differences=tuple(_differences(promise, at_k(run, promise.k))),
        notes=(*notes_of(run), *notes),
    )


def compare_promises(first: Promise, second: Promise) -> PromiseComparison:
    """Compare the inspections of two drafters. Raises MixedTraceError if their K differ."""
    if first.k != second.k:
        raise MixedTraceError(f"the inspections have K = {first.k} and {second.k}; give both one K")
    return PromiseComparison(
        drafter=first.drafter,
        run=second.drafter,
        k=first.k,
        differences=tuple(_differences(first, second)),
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
    promise: Promise, served: Acceptance | AcceptanceAtK | Promise
) -> Iterator[PromiseDifference]:
    spread = served.marginal_interval or (None,) * promise.k
    yield _difference(
        None,
        (promise.mean_length, promise.mean_length_interval),
        (served.mean_length, served.mean_length_interval),
    )
    promised = zip(promise.marginal, promise.marginal_interval, strict=True)
    live = zip(served.marginal, spread, strict=True)
    for depth, (first, second) in enumerate(zip(promised, live, strict=True), start=1):
        yield _difference(depth, first, second)


def _difference(
    depth: int | None,
    promised: tuple[float, Interval | None],
    served: tuple[float, Interval | None],
) -> PromiseDifference:
    (a, a_spread), (b, b_spread) = promised, served
    return PromiseDifference(
        depth=depth,
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


def to_json(comparison: PromiseComparison) -> str:
    """Return the comparison as a document, newline at the end."""
    content = {**plain(comparison), "verdict": comparison.verdict}
    return text(PROMISE, content)


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
