"""The evidence as tables in Markdown and as a picture, and the criteria, stated before any run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from driftscope.analysis.statistics.drift import Answer
from driftscope_lab.phenomenon.estimates import Estimate, Sums, between_seeds, of, robustness
from driftscope_lab.phenomenon.recording import AS_TRAINED, conditions

LEAST_SINK = 0.2
LOST_BELOW = 0.5
KEPT_ABOVE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One drafter's run of one seed: sums by condition, and the analysis's answer to whether its
    attention drifts in the trained form."""

    sums: dict[str, Sums]
    drift: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One criterion of one seed: whether it is met, and the figures that decide."""

    name: str
    met: bool
    figures: str


def judged(eagle3: Recorded, eagle31: Recorded) -> tuple[Criterion, ...]:
    """Return the three criteria of one seed."""
    return _sink(eagle3, eagle31), _template(eagle3, eagle31), _drift(eagle3, eagle31)


def _sink(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    first = of(eagle3.sums[AS_TRAINED].by_depth("sink"))
    lost, kept = (of(one.sums[AS_TRAINED].sink_kept()) for one in (eagle3, eagle31))
    met = first.low >= LEAST_SINK and lost.high < LOST_BELOW and kept.low >= KEPT_ABOVE
    figures = (
        f"EAGLE-3 has {first.words()} at depth 1 and keeps {lost.words()} of it at the last depth, "
        f"EAGLE-3.1 keeps {kept.words()}"
    )
    return Criterion(name="(a) sink", met=met, figures=figures)


def _template(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    ratio: Estimate = robustness(eagle3.sums, eagle31.sums)
    return Criterion(
        name="(b) template",
        met=ratio.low > 1.0,
        figures=f"EAGLE-3.1 keeps {ratio.words()} times the share that EAGLE-3 keeps",
    )


def _drift(eagle3: Recorded, eagle31: Recorded) -> Criterion:
    return Criterion(
        name="(c) drift",
        met=eagle3.drift is Answer.DRIFT and eagle31.drift is Answer.NO_DRIFT,
        figures=f"the analysis says {_said(eagle3)} of EAGLE-3 and {_said(eagle31)} of EAGLE-3.1",
    )


def _said(one: Recorded) -> str:
    return f'"{one.drift}"' if one.drift else "nothing"


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


WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 42, 12, 34, 34
COLUMNS, LEGEND = 2, 28
COLOURS = ("#c2410c", "#1d4ed8")
"""Colour of each drafter; the first is EAGLE-3."""
DASHES = ("", "6 3", "1.5 3")
"""Pattern of each drafter's lines, so that they differ without colour too: seeds in turn."""


def svg(evidence: Evidence) -> str:
    """Return the picture of the figures in the trained form: each seed's line by itself."""
    rows = -(-len(BY_DEPTH) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + LEGEND
    drafters = list(next(iter(evidence.values())))
    size, font = f'viewBox="0 0 {width} {height}"', 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>Figures by depth of {' and '.join(drafters)}, a line for each seed</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(drafters),
    ]
    for at, (figure, words) in enumerate(BY_DEPTH.items()):
        x, y = at % COLUMNS * WIDTH, at // COLUMNS * HEIGHT + LEGEND
        parts += [f'<g transform="translate({x} {y})">', *_panel(evidence, figure, words), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(drafters: Sequence[str]) -> Iterator[str]:
    for at, drafter in enumerate(drafters):
        x = LEFT + at * 110
        yield f'<path d="M{x} 16h24" stroke="{COLOURS[at]}" stroke-width="2"/>'
        yield f'<text x="{x + 30}" y="20">{drafter}</text>'


def _panel(evidence: Evidence, figure: str, words: str) -> Iterator[str]:
    lines = [
        (drafter, seed, runs[name].sums[AS_TRAINED].by_depth(figure).value.tolist())
        for seed, runs in enumerate(evidence.values())
        for drafter, name in enumerate(runs)
    ]
    depths = len(lines[0][2])
    top = max(max(values) for _, _, values in lines) * 1.05
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    yield f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{words}</text>'
    for tick in (0.0, top / 2, top):
        y = TOP + down * (1 - tick / top)
        yield f'<path d="M{LEFT} {y:.1f}h{across}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{tick:.2g}</text>'
    for depth in range(depths):
        x = LEFT + across * depth / (depths - 1)
        yield f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{depth + 1}</text>'
    yield f'<text x="{LEFT + across / 2}" y="{HEIGHT - 4}" text-anchor="middle">depth</text>'
    for drafter, seed, values in lines:
        points = " ".join(
            f"{LEFT + across * depth / (depths - 1):.1f},{TOP + down * (1 - value / top):.1f}"
            for depth, value in enumerate(values)
        )
        yield (
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[drafter]}" '
            f'stroke-width="1.8" stroke-dasharray="{DASHES[seed % len(DASHES)]}"/>'
        )
