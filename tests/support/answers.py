"""Answers of all kinds, written for the tests, with the region of each piece."""

from __future__ import annotations

from collections.abc import Iterator

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
