"""Answers in all formats with the kind of each piece (tests/unit/data/answers.jsonl).

`PYTHONPATH=tests python -m support.written_answers` prints how many of their characters are
classified right, by format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from driftscope.regions import marks_of, text_regions

ANSWERS = Path(__file__).parents[1] / "unit" / "data" / "answers.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An answer as it was written."""

    format: str
    pieces: tuple[tuple[str, str], ...]
    """Text and kind, in order."""
    prompt: str = ""

    @property
    def text(self) -> str:
        """Return the whole answer."""
        return "".join(text for text, _ in self.pieces)

    @property
    def kinds(self) -> list[str]:
        """Return the kind of each character."""
        return [kind for text, kind in self.pieces for _ in text]


def written_answers() -> Iterator[Written]:
    """Yield the answers of the file."""
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        row["pieces"] = tuple((text, kind) for text, kind in row["pieces"])
        yield Written(**row)


def kinds_of(answer: Written) -> list[str]:
    """Return the kind of each character as `text_regions` finds it, from text alone."""
    text, inside = answer.text, marks_of().left_open(answer.prompt)
    regions = text_regions(text, inside=inside)
    ends = [*(region.start for region in regions[1:]), len(text)]
    return [
        region.region
        for region, end in zip(regions, ends, strict=True)
        for _ in range(region.start, end)
    ]


def shares_right() -> dict[str, tuple[int, float]]:
    """Return the number of answers and the share of characters classified right, by format."""
    counts: dict[str, list[int]] = {}
    for answer in written_answers():
        count = counts.setdefault(answer.format, [0, 0, 0])
        right = sum(a == b for a, b in zip(kinds_of(answer), answer.kinds, strict=True))
        for place, number in enumerate((1, right, len(answer.text))):
            count[place] += number
    return {name: (answers, right / length) for name, (answers, right, length) in counts.items()}


if __name__ == "__main__":
    for name, (answers, share) in shares_right().items():
        print(f"{name:45} {answers:3} answers {share:7.1%} right")
