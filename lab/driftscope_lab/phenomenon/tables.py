"""The evidence as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from driftscope_lab.phenomenon.conditions import AS_TRAINED, conditions
from driftscope_lab.phenomenon.criteria import Criterion, Recorded
from driftscope_lab.phenomenon.estimates import between_seeds, of, robustness
from driftscope_lab.phenomenon.figures import Sums

Evidence = Mapping[str, Mapping[str, Recorded]]
"""Seed -> drafter -> its run."""
BY_DEPTH = {
    "sink": "attention on the first token",
    "near": "attention on the nearest places",
    "rms": "RMS before the final norm",
    "reached": "share of rounds accepted to the depth",
}


def lengths(evidence: Evidence) -> Iterator[str]:
    """Yield the acceptance length by condition: per seed with its interval over prompts."""
    columns = [(seed, drafter) for seed, runs in evidence.items() for drafter in runs]
    yield "| condition | " + " | ".join(f"{drafter}, {seed}" for seed, drafter in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for condition in conditions():
        cells = [
            of(evidence[seed][drafter].sums[condition].length()).words()
            for seed, drafter in columns
        ]
        yield f"| {condition} | " + " | ".join(cells) + " |"


def by_depth(evidence: Evidence, condition: str = AS_TRAINED) -> Iterator[str]:
    """Yield the figures by depth in one condition, as means over seeds."""
    first = next(iter(next(iter(evidence.values())).values())).sums[condition]
    depths = range(1, first.sink.shape[1] + 1)
    yield "| figure | drafter | " + " | ".join(map(str, depths)) + " |"
    yield "|---" * (len(depths) + 2) + "|"
    for figure, words in BY_DEPTH.items():
        for drafter in next(iter(evidence.values())):
            sums = [runs[drafter].sums[condition] for runs in evidence.values()]
            yield f"| {words} | {drafter} | " + " | ".join(_means(sums, figure)) + " |"


def _means(sums: Sequence[Sums], figure: str) -> list[str]:
    rows = zip(*(one.by_depth(figure).value.tolist() for one in sums), strict=True)
    return [f"{sum(values) / len(values):.2f}" for values in rows]


def answers(criteria: Mapping[str, Sequence[Criterion]]) -> Iterator[str]:
    """Yield yes or no for each criterion and seed, with the figures that decide."""
    yield "| criterion | seed | met | figures |"
    yield "|---|---|---|---|"
    for at in range(len(next(iter(criteria.values())))):
        for seed, found in criteria.items():
            one = found[at]
            yield f"| {one.name} | {seed} | {'yes' if one.met else 'no'} | {one.figures} |"


def across_seeds(evidence: Evidence) -> Iterator[str]:
    """Yield the deciding figures as means over seeds, with Student's interval between seeds."""
    pairs = [tuple(runs.values()) for runs in evidence.values()]
    kept = [[of(one.sums[AS_TRAINED].sink_kept()).value for one in pair] for pair in pairs]
    first = [[of(one.sums[AS_TRAINED].by_depth("sink")).value for one in pair] for pair in pairs]
    ratios = [robustness(a.sums, b.sums).value for a, b in pairs]
    yield f"| figure | mean over {len(pairs)} seeds (95 % between seeds) |"
    yield "|---|---|"
    for at, drafter in enumerate(next(iter(evidence.values()))):
        depth_1 = between_seeds([pair[at] for pair in first]).words(3)
        yield f"| sink mass at depth 1, {drafter} | {depth_1} |"
        yield f"| sink kept, {drafter} | {between_seeds([pair[at] for pair in kept]).words()} |"
    robust = between_seeds(ratios).words()
    yield f"| kept under other templates, EAGLE-3.1 over EAGLE-3 | {robust} |"
