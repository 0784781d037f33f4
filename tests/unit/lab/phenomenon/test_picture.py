"""The picture of the evidence, of sums whose figures are known."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np

from driftscope.analysis.statistics.drift import Answer
from driftscope_lab.phenomenon.estimates import Sums
from driftscope_lab.phenomenon.evidence import BY_DEPTH, Recorded, svg
from driftscope_lab.phenomenon.recording import AS_TRAINED

K = 8
NAMES = ("EAGLE-3", "EAGLE-3.1")


def _recorded(sink: float) -> Recorded:
    ones = np.ones((4, K))
    sums = Sums(
        prompts=("a", "b", "c", "d"),
        rounds=np.ones(4),
        reached=ones,
        chains=np.ones(4),
        sink=ones * np.linspace(sink, sink / 2, K),
        near=ones,
        rms=ones,
    )
    return Recorded(sums={AS_TRAINED: sums}, drift=Answer.CANNOT_TELL)


def _panels(text: str) -> list[list[list[float]]]:
    """Return the heights of each line's points, by panel and line, downwards."""
    root = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    return [
        [
            [float(point.partition(",")[2]) for point in line.attrib["points"].split()]
            for line in panel.findall(f"{name}polyline")
        ]
        for panel in root.findall(f"{name}g")
    ]


def test_each_figure_has_a_panel_with_a_line_for_each_drafter_and_seed() -> None:
    evidence = {seed: {name: _recorded(0.2) for name in NAMES} for seed in ("seed-0", "seed-1")}
    panels = _panels(svg(evidence))
    assert len(panels) == len(BY_DEPTH)
    assert all(len(lines) == 4 for lines in panels)
    assert all(len(line) == K for lines in panels for line in lines)


def test_a_line_falls_as_its_figure_does_and_the_larger_one_lies_above() -> None:
    evidence = {"seed-0": dict(zip(NAMES, (_recorded(0.4), _recorded(0.2)), strict=True))}
    large, small = _panels(svg(evidence))[0]
    assert large == sorted(large) and large[0] < large[-1]
    assert large[0] < small[0]
    middle = (large[-1], small[0])
    assert abs(middle[0] - middle[1]) < 0.2


def test_the_colours_are_those_of_the_legend() -> None:
    text = svg({"seed-0": {name: _recorded(0.2) for name in NAMES}})
    assert [text.index(name) for name in NAMES] == sorted(text.index(name) for name in NAMES)
    assert len(set(re.findall(r'stroke="(#[0-9a-f]{6})"', text))) == 2
