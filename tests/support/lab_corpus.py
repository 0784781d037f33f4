"""A small corpus made here, for the lab's training: no network, no pinned wheels."""

from __future__ import annotations

import random

from driftscope_lab.training.corpus import SourceFile

WORDS = [
    a + b for a in ("node", "edge", "path", "load") for b in ("ing", "er", "ed", "able", "less")
]


def source(index: int) -> str:
    """A module with a documented function; its words differ from module to module."""
    rng = random.Random(index)
    one, two, three = rng.sample(WORDS, 3)
    return (
        f'"""Functions about {one}."""\n\n\n'
        f"def find_{one}_{index}({two}, {three}):\n"
        f'    """Return what the {one} gives for {two} and {three}, or nothing at all where '
        f'both of them are empty or missing.\n\n    A second paragraph."""\n'
        f"    total = [{three} for {three} in {two} if {three} is not None]\n"
        f"    if not total:\n        return None\n"
        f"    return {two}.join(total) + str({index}) + {three}\n"
    ) * 3


FILES = [SourceFile(path=f"pack/module_{index}.py", text=source(index)) for index in range(60)]
