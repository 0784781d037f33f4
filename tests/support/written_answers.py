"""Answers with the kind of each piece: written ones in all formats (tests/unit/data/answers.jsonl),
and those of a real model, labelled by reading (real_answers.jsonl).

`PYTHONPATH=tests python -m support.written_answers` prints how many of their characters are
classified right, by format, and the tokens of the real ones by their kind and the kind found.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from support.answers import WordTokenizer

from driftscope.regions import TokenTexts, answer_regions, marks_of, text_regions
from driftscope.vocabulary import Region

DATA = Path(__file__).parents[1] / "unit" / "data"
END = "<|im_end|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An answer as it was written."""

    format: str
    pieces: tuple[tuple[str, str], ...]
    """Text and kind, in order."""
    prompt: str = ""
    tokens: str = ""
    """Length of each token, as the character with the code 64 + length."""

    @property
    def text(self) -> str:
        """Return the whole answer."""
        return "".join(text for text, _ in self.pieces)

    @property
    def kinds(self) -> list[str]:
        """Return the kind of each character."""
        return [kind for text, kind in self.pieces for _ in text]


def written_answers(file: str = "answers.jsonl") -> Iterator[Written]:
    """Yield the answers of a file."""
    for line in (DATA / file).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "pieces" in row:
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


def real_tokens() -> Counter[tuple[str, str]]:
    """Return the number of tokens of the real answers by their kind, that of their last character,
    and the kind that the probe records for their ids."""
    counts: Counter[tuple[str, str]] = Counter()
    for answer in written_answers("real_answers.jsonl"):
        ends = list(accumulate(ord(length) - 64 for length in answer.tokens))
        begins = [0, *ends[:-1]]
        words = [answer.text[begin:end] for begin, end in zip(begins, ends, strict=True)]
        special = tuple(at for at, word in enumerate(words) if word == END)
        texts = TokenTexts(WordTokenizer(*words, special=special))
        found = answer_regions(texts, [], range(len(words)))
        stops = [*found.starts[1:], len(words)]
        for start, stop, code in zip(found.starts, stops, found.codes, strict=True):
            counts.update((answer.kinds[end - 1], Region.ALL[code]) for end in ends[start:stop])
    return counts


if __name__ == "__main__":
    for name, (answers, share) in shares_right().items():
        print(f"{name:45} {answers:3} answers {share:7.1%} right")
    tokens = real_tokens()
    kinds = [kind for kind in Region.ALL if any(kind in pair for pair in tokens)]
    print("\nkind          tokens   found as", *(f"{kind:>8}" for kind in kinds))
    for kind in kinds:
        row = [tokens[kind, other] for other in kinds]
        print(f"{kind:10} {sum(row):9}           ", *(f"{number:8}" for number in row))
