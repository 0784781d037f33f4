"""Answers with the kind of each piece: those of tests/unit/data/answers.jsonl, and written ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from driftscope.regions import TokenTexts, answer_regions, marks_of, text_regions
from driftscope.vocabulary import Region

Piece = tuple[str, str]
"""A piece of text, and its region."""
PROSE = (
    "The cache is filled once and read by every later step. ",
    "Größe und Maß ändern sich nicht, naïve Annahmen schon. ",
    "読み込みは一度だけ行われます。次の手順へ進みます。",
    "Nothing else changes, so the answer stays as it was 🙂 and you can go on. ",
)
CODE = (
    "def area(width, height):\n    return width * height\n",
    "for (int i = 0; i < n; i++) {\n  total += values[i];\n}\n",
    'SELECT name FROM runs WHERE label = "größe" ORDER BY name;\n',
)
JSON = (
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}',
    '{"name": "search", "arguments": {"query": "a \\"quoted\\" word", "limit": 10}}',
)
TABLE = "| run | tokens |\n|---|---|\n| a | 31 |\n| b | 40 |\n"
THINKING = "The user wants 3 things. First ```look``` at the table, then | count |. "


def answers() -> Iterator[list[Piece]]:
    """Yield 216 answers as pieces in order."""
    for number in range(36):
        prose, more = PROSE[number % 4], PROSE[(number // 4 + 1) % 4]
        code, json = CODE[number % 3], JSON[number % 2]
        yield [(prose, "prose"), *_listed(number), (more, "prose")]
        yield [(prose + "\n", "prose"), *fenced(code, "python"), (more, "prose")]
        yield [*_thinking(), (prose, "prose"), *_call(json), (more, "prose")]
        yield [(prose + "\n", "prose"), (TABLE, "markup"), (more, "prose")]
        yield _cut(number, prose, code, json)
        yield [(prose + "\n", "prose"), *_diff(), (more, "prose")]


def fenced(code: str, tag: str, fence: str = "```") -> list[Piece]:
    """Return a fenced block."""
    return [(f"{fence}{tag}\n{code}{fence}\n", "json" if tag == "json" else "code")]


def _listed(number: int) -> list[Piece]:
    return [
        ("\n", "prose"),
        ("-", "markup"),
        (" weight ", "prose"),
        (f"{number},{number}", "number"),
        (" grams\n", "prose"),
        (f"{number + 1}.", "markup"),
        (" the rest, with ", "prose"),
        ("$x^2 + y$", "number"),
        (" as before\n", "prose"),
    ]


def _thinking() -> list[Piece]:
    return [("<think>", "template"), (THINKING, "thinking"), ("</think>", "template")]


def _call(json: str) -> list[Piece]:
    return [("<tool_call>", "template"), (f"\n{json}\n", "json"), ("</tool_call>", "template")]


def _diff() -> list[Piece]:
    changed = "@@ -1,2 +1,2 @@\n-old = 1\n+new = 2\n"
    return [("```diff\n", "code"), (changed, "diff"), (" same\n```\n", "code")]


def _cut(number: int, prose: str, code: str, json: str) -> list[Piece]:
    """Return an answer that max_tokens cuts, or whose fences are nested."""
    kinds = (
        [(prose, "prose"), ("<tool_call>", "template"), (json[:-9], "json")],
        [(prose + "\n", "prose"), ("```python\n" + code[:-5], "code")],
        [("<think>", "template"), (THINKING, "thinking")],
        [*fenced(f"Write:\n```python\n{code}```\n", "markdown", "````"), (prose, "prose")],
        [(json[:-4], "json")],
        [*fenced(json + "\n", "json"), (prose, "prose")],
    )
    return kinds[number % len(kinds)]


class WordTokenizer:
    """The methods of a tokenizer that the recorders use, of a few whole words."""

    def __init__(self, *texts: str, special: tuple[int, ...] = (), first_id: int = 0) -> None:
        self._texts, self._first, self.all_special_ids = texts, first_id, special

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(self.convert_ids_to_tokens(ids))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self._texts[number - self._first] for number in ids]


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


def written_answers(file: str = "answers.jsonl") -> Iterator[Written]:
    """Yield the answers of a file."""
    for line in (DATA / file).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "pieces" in row:
            row["pieces"] = tuple((text, kind) for text, kind in row["pieces"])
            yield Written(**row)


def pieces_of(text: str, **how: Any) -> list[Piece]:
    """Return the pieces of a text with the regions that `text_regions` finds."""
    regions = text_regions(text, **how)
    ends = [*(region.start for region in regions[1:]), len(text)]
    return [
        (text[region.start : end], region.region) for region, end in zip(regions, ends, strict=True)
    ]


def by_character(pieces: Iterable[Piece]) -> list[str]:
    """Return the region of each character."""
    return [region for text, region in pieces for _ in text]


def shares_right() -> dict[str, tuple[int, float]]:
    """Return the number of answers and the share of characters classified right, by format."""
    counts: dict[str, list[int]] = {}
    for answer in written_answers():
        count = counts.setdefault(answer.format, [0, 0, 0])
        found = pieces_of(answer.text, inside=marks_of().left_open(answer.prompt))
        pairs = zip(by_character(found), by_character(answer.pieces), strict=True)
        right = sum(a == b for a, b in pairs)
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
        kinds = by_character(answer.pieces)
        for start, stop, code in zip(found.starts, stops, found.codes, strict=True):
            counts.update((kinds[end - 1], Region.ALL[code]) for end in ends[start:stop])
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
