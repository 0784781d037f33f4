"""Regions of text and of an answer's tokens, and the marks of parsers that engines ship."""

from __future__ import annotations

import ast
import re
import struct
from collections import Counter
from dataclasses import asdict, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import (
    WordTokenizer,
    answers,
    by_character,
    fenced,
    pieces_of,
    real_tokens,
    shares_right,
    written_answers,
)
from support.runs import Spec, rows, write_run
from support.waiting import no_hang
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from driftscope.findings import rules_circumstances
from driftscope.parser_marks import (
    FORMATS,
    NOT_COVERED,
    formats_of,
    named_parser,
    parsers_of,
    unknown_parsers,
)
from driftscope.regions import (
    PASSAGE,
    AnswerRegions,
    TokenTexts,
    answer_regions,
    copied_tokens,
    fence_tag,
    language_of,
    marks_of,
    text_regions,
)
from driftscope.trace.reader import read_trace
from driftscope.trace.records import RequestRow
from driftscope.vocabulary import Language, Region


def test_every_written_answer_has_the_regions_that_it_was_written_with() -> None:
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        found = pieces_of(text)
        assert by_character(found) == by_character(pieces), text
        assert all(piece for piece, _ in found) and "".join(piece for piece, _ in found) == text


NEEDED = 0.9
"""Share of the tokens of a kind that have to be found, and of those found that have to be of it. Of
the difference between two kinds, 0.9 + 0.9 - 1, or 80 %, is then left at the least."""


@pytest.fixture(scope="module")
def real() -> Counter[tuple[str, str]]:
    return real_tokens()


@pytest.mark.parametrize("kind", ["prose", "code", "json", "markup", "number", "template"])
def test_tokens_of_a_real_model_have_the_kind_that_a_reader_gave_them(
    real: Counter[tuple[str, str]], kind: str
) -> None:
    assert sum(real.values()) > 15_000
    right = real[kind, kind]
    assert right >= NEEDED * sum(number for (wanted, _), number in real.items() if wanted == kind)
    assert right >= NEEDED * sum(number for (_, found), number in real.items() if found == kind)


FENCED = "```python\nx = 1\n"
GUIDED = "```py\nx = 1\n```\n| a |\n"
CASES: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "a longer fence holds a shorter one": (
        [("````markdown\n```python\nx = 1\n```\n````\n", "code"), ("Done.", "prose")],
        {},
    ),
    "a fence in the middle of a line": ([("Use ```x``` here.", "prose")], {}),
    "the text of a tool call in a fence": ([(FENCED + "<tool_call>{}", "code")], {}),
    "its special token in a fence": (
        [(FENCED, "code"), ("<tool_call>", "template"), ("{}", "json")],
        {"special": [(len(FENCED), len(FENCED + "<tool_call>"))]},
    ),
    "a special token": ([("Hello", "prose"), ("<|end|>", "template")], {"special": [(5, 12)]}),
    "prose that begins with a brace": ([("{see below} for the rest", "prose")], {}),
    "prose that begins with a bracket": ([("[see](below) for the rest", "prose")], {}),
    "a json constraint": ([("[1, 2] and more", "json")], {"constraint": "json"}),
    "after a json value": ([('{"a": "}"}', "json"), ("\nDone.", "prose")], {}),
    "a guided answer": ([(GUIDED, "guided")], {"constraint": "guided"}),
    "its end": (
        [(GUIDED, "guided"), ("<eos>", "template")],
        {"special": [(len(GUIDED), len(GUIDED) + 5)], "constraint": "guided"},
    ),
    "a constraint after thinking that the prompt opened": (
        [("3 ways. ", "thinking"), ("</think>", "template"), ("\n42", "guided")],
        {"inside": marks_of().left_open("<think>"), "constraint": "guided"},
    ),
    "a constraint after the thinking": (
        [
            ("<think>", "template"),
            ("3 ways. ", "thinking"),
            ("</think>", "template"),
            ("\n42", "guided"),
        ],
        {"constraint": "guided"},
    ),
    "a tool call that the prompt opened": (
        [('{"a": 1}', "json"), ("</tool_call>", "template")],
        {"inside": marks_of().left_open("<tool_call>"), "constraint": "json"},
    ),
    "thinking that the prompt opened": (
        [("So. ", "thinking"), ("</think>", "template"), ("Yes.", "prose")],
        {"inside": marks_of().left_open("<|im_start|>assistant\n<think>\n")},
    ),
}


@pytest.mark.parametrize(("pieces", "how"), CASES.values(), ids=CASES)
def test_pieces_have_their_regions(pieces: list[tuple[str, str]], how: dict[str, Any]) -> None:
    assert pieces_of("".join(text for text, _ in pieces), **how) == pieces


def test_an_empty_answer_has_no_region_and_thinking_that_the_prompt_closed_is_over() -> None:
    assert text_regions("") == []
    assert marks_of().left_open("<think>\n\n</think>\n\n") is None


@pytest.mark.parametrize(
    ("answer", "boundaries"),
    [
        ('<tool_call>\n{"name": "f"}\n</tool_call>', [0]),
        ('{"name": "f", "parameters": {}}', [0]),
        ('[f(x="y")]', [0]),
        ("<|channel|>final<|message|>Yes.", []),
        ("7 of them.", []),
        ("A list:\n- one 1\n```py\nx\n```\nDone.", [16, 28]),
    ],
)
def test_boundaries_are_where_blocks_begin_and_end(answer: str, boundaries: list[int]) -> None:
    assert [region.start for region in text_regions(answer) if region.boundary] == boundaries


@pytest.mark.parametrize(
    "line",
    [
        *("[", '[1,\n{"a":\n', '[{"a":\n\n', "[f(a=\n", "<think>\n", "| a\n", "<|channel|> to="),
        *("x ( ", "{#", "# a\n", "1|", "x, ", "a = b\n", "foo(", "<p"),
        "```py\nx\n\nIt is so now\n",
    ],
)
def test_what_nothing_closes_is_read_in_linear_time(line: str) -> None:
    with no_hang():
        text_regions(line * 20_000 + "\n\nEnd.")


TAGS = {
    Language.PYTHON: ("python", "Python3", "{.py .numberLines}", "py title=a.js"),
    Language.JAVASCRIPT: ("js{1,3}", "tsx"),
    Language.JAVA: ("java",),
    Language.C: ("c++", "cpp:src/main.cpp"),
    Language.GO: ("go",),
    Language.RUST: ("rs",),
    Language.SHELL: ("bash",),
    Language.SQL: ("sql",),
    Language.HTML: ("css",),
    Language.JSON: ("yaml", "jsonc"),
    Language.OTHER: ("diff", "c#", "Zweifelsfall"),
    Language.NONE: ("", "   "),
}
"""Infos of fences, of every class."""


@pytest.mark.parametrize(
    ("info", "language"), [(info, language) for language, infos in TAGS.items() for info in infos]
)
def test_a_tag_has_its_class(info: str, language: str) -> None:
    assert language_of(fence_tag(info)) == language
    found = text_regions(f"See:\n```{info}\nx\n```\nDone.")
    assert [region.language for region in found] == [Language.NO_FENCE, language, Language.NO_FENCE]


def test_every_class_of_a_language_is_reached() -> None:
    assert {*TAGS, Language.NO_FENCE} == set(Language.ALL)


def test_only_fences_have_a_language() -> None:
    """Written answers: code and diffs have one, everything outside fences has none."""
    seen = set()
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        inside = _inside_fences(pieces)
        for text_region in text_regions(text):
            assert (text_region.language != Language.NO_FENCE) is inside[text_region.start], text
            seen.add((text_region.region, text_region.language))
    assert (Region.CODE, Language.PYTHON) in seen
    assert (Region.DIFF, Language.OTHER) in seen
    assert (Region.JSON, Language.JSON) in seen
    assert (Region.JSON, Language.NO_FENCE) in seen, "a tool call"


def _inside_fences(pieces: list[tuple[str, str]]) -> list[bool]:
    """Return for each character whether it is in a fence, by how the answer was written."""
    inside, flags = False, list[bool]()
    for piece, region in pieces:
        opens = piece.startswith(("```", "~~~"))
        inside = opens or (inside and region in (Region.CODE, Region.DIFF))
        flags += [inside] * len(piece)
    return flags


@pytest.mark.parametrize(
    ("text", "special", "found"),
    [
        (
            "```sql\nSELECT 1<|im_end|>",
            [(15, 25)],
            [(Region.CODE, Language.SQL), (Region.TEMPLATE, Language.NO_FENCE)],
        ),
        (
            "```go\nx\n```\n```rust\ny\n```\n",
            [],
            [(Region.CODE, Language.GO), (Region.CODE, Language.RUST)],
        ),
        (f"````html\n{fenced('x', 'python')[0][0]}````\n", [], [(Region.CODE, Language.HTML)]),
    ],
    ids=["a special token is in no language", "in a row", "in one another"],
)
def test_fences_keep_their_languages(
    text: str, special: list[tuple[int, int]], found: list[tuple[str, str]]
) -> None:
    assert [(region.region, region.language) for region in text_regions(text, special)] == found


SPECIAL = ("<s>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def trained(kind: str) -> Tokenizer:
    """Return a tokenizer trained on the written answers."""
    texts = ["".join(piece for piece, _ in pieces) for pieces in answers()]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        alphabet = sorted(set("".join(texts)))
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, *MARKS], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Plain:
    """The methods of a transformers tokenizer that the recorder uses."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.all_special_ids = [tokenizer.token_to_id(text) for text in SPECIAL]
        self.added_tokens_decoder = {tokenizer.token_to_id(text): _Added(text) for text in MARKS}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[Any]:
        return [self._tokenizer.id_to_token(token) for token in ids]


class _Added(SimpleNamespace):
    special = False

    def __init__(self, text: str) -> None:
        super().__init__(text=text)

    def __str__(self) -> str:
        return str(self.text)


@pytest.fixture(scope="module", params=["byte-level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return trained(request.param)


def by_token(regions: AnswerRegions, tokens: int) -> list[tuple[str, str]]:
    """Return the region and the language of each token."""
    ends = [*regions.starts[1:], tokens]
    columns = (regions.starts, ends, regions.codes, regions.languages)
    return [
        (Region.ALL[code], Language.ALL[language])
        for begin, end, code, language in zip(*columns, strict=True)
        for _ in range(begin, end)
    ]


def test_regions_and_languages_of_ids_agree_with_those_of_the_text(tokenizer: Tokenizer) -> None:
    """A token has the last region that begins in it or before it."""
    texts, same, tokens, number = TokenTexts(Plain(tokenizer)), 0, 0, 0
    named: Counter[str] = Counter()
    for pieces in answers():
        text = "".join(piece for piece, _ in pieces)
        encoded = tokenizer.encode(text)
        found = by_token(answer_regions(texts, [], encoded.ids), len(encoded.ids))
        marks = [o for o, t in zip(encoded.offsets, encoded.tokens, strict=True) if t in MARKS]
        starts = text_regions(text, marks)
        wanted = [
            [(start.region, start.language) for start in starts if start.start < max(end, 1)][-1]
            for _, end in encoded.offsets
        ]
        same += sum(a == b for a, b in zip(found, wanted, strict=True))
        tokens, number = tokens + len(wanted), number + 1
        named.update(language for _, language in found)
    assert number >= 200
    assert same / tokens >= 0.99, same / tokens
    assert set(named) == {"no fence", "python", "json/yaml", "other"}


def _found(tokenizer: Tokenizer, answer: str, prompt: str = "") -> tuple[AnswerRegions, list[str]]:
    """Return the regions of an answer's ids, and the name of each."""
    ids = (tokenizer.encode(text).ids for text in (prompt, answer))
    regions = answer_regions(TokenTexts(Plain(tokenizer)), *ids)
    return regions, [Region.ALL[code] for code in regions.codes]


def test_a_place_is_that_of_the_token_that_holds_the_first_character(tokenizer: Tokenizer) -> None:
    answer = "Done.\n```py\nx\n```\nDone."
    regions, names = _found(tokenizer, answer)
    texts = TokenTexts(Plain(tokenizer)).of(tokenizer.encode(answer).ids)
    assert names == ["prose", "code", "prose"]
    assert "".join(texts[: regions.starts[1]]).strip() == "Done."
    assert regions.boundaries == regions.starts[1:]


def test_a_prompt_that_opens_thinking_is_seen(tokenizer: Tokenizer) -> None:
    _, names = _found(tokenizer, "So.</think>Yes.", prompt="Go on.<think>")
    assert names == ["thinking", "template", "prose"]


def test_an_empty_answer_has_empty_columns(tokenizer: Tokenizer) -> None:
    assert not any(asdict(_found(tokenizer, "", prompt="Go")[0]).values())


def test_copied_passages_are_pairs_of_begin_and_end(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The cache is filled once and read by every later step. ").ids
    start = tokenizer.encode("Größe").ids
    regions = answer_regions(TokenTexts(Plain(tokenizer)), prompt, [*start, *prompt])
    assert regions.copies == [len(start), len(start) + len(prompt)]


TOKENS = st.lists(st.integers(0, 2), max_size=60)


def brute_force(prompt: list[int], answer: list[int]) -> list[bool]:
    """Return the same by comparing every passage with every earlier one."""
    tokens, n = [*prompt, *answer], len(prompt)
    copied = [False] * len(tokens)
    for at in range(n, len(tokens) - PASSAGE + 1):
        passage = tokens[at : at + PASSAGE]
        if any(tokens[before : before + PASSAGE] == passage for before in range(at)):
            copied[at : at + PASSAGE] = [True] * PASSAGE
    return copied[n:]


@given(TOKENS, TOKENS)
def test_the_tokens_of_every_repeated_passage_are_copied(
    prompt: list[int], answer: list[int]
) -> None:
    assert copied_tokens(prompt, answer).tolist() == brute_force(prompt, answer)


def test_large_ids_are_told_apart() -> None:
    prompt = list(range(2**31 - 20, 2**31 - 1))
    assert copied_tokens(prompt, prompt).all()
    assert not copied_tokens(prompt, [token - 1000 for token in prompt]).any()


FIRST_ID = 1_234_567_000
WORDS = ("Zweifelsfall ", "```py\n", "hemmungslos = ", "4711\n", "```\n", "Kaleidoskop ")
ANSWER = [FIRST_ID + at for at in (0, 1, 2, 3, 4, 5, *[0] * 12)]


def test_neither_text_nor_ids_are_in_any_file(tmp_path: Path) -> None:
    regions = answer_regions(TokenTexts(WordTokenizer(*WORDS, first_id=FIRST_ID)), ANSWER, ANSWER)
    columns = {f"region_{name}": values for name, values in asdict(regions).items()}
    run = write_run(
        tmp_path / "run",
        content=[
            replace(row, **columns) if isinstance(row, RequestRow) else row
            for row in rows(Spec(requests=2))
        ],
    )
    assert read_trace(run).request.column("region_starts").to_pylist() == [regions.starts] * 2
    assert len(regions.starts) > 2 and regions.copies
    written = b"".join(path.read_bytes() for path in run.iterdir())
    assert not [word for word in WORDS if word.strip().encode() in written]
    for token in set(ANSWER):
        assert struct.pack("<i", token) not in written
        assert str(token).encode() not in written


def test_findings_have_words_for_every_region() -> None:
    assert tuple(rules_circumstances.WORDS) == Region.ALL


def test_an_opened_request_has_a_letter_for_every_region() -> None:
    script = (files("driftscope_reports") / "assets" / "report.js").read_text(encoding="utf-8")
    table = re.search(r"const REGIONS = (.+?);", script, re.DOTALL)
    letters = dict(re.findall(r'(\w+): "(\w)"', table[1]))
    assert tuple(letters) == Region.ALL
    assert len(set(letters.values())) == len(Region.ALL)


VLLM = Path(((vllm := find_spec("vllm")) and vllm.origin) or "/nowhere/__init__.py").parent
SGLANG = Path(__file__).parents[2] / ".venv/sglang-0.5.23/lib/python3.11/site-packages/sglang/srt"
PARSERS = [
    (Region.JSON, VLLM / "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    (Region.THINKING, VLLM / "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    (Region.JSON, SGLANG / "function_call/parser_names.py", "TOOL_CALL_PARSER_NAMES"),
    (Region.THINKING, SGLANG / "parser/reasoning_parser_names.py", "REASONING_PARSER_NAMES"),
]
"""Files of the engines with their parsers of each region, and the variable that holds them."""


def shipped_in(path: Path, variable: str) -> set[str]:
    """Return the strings of a list, or the keys of a dictionary, that a module assigns."""
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    return {
        str(name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable
        for name in ast.literal_eval(node.value)
    }


@pytest.mark.parametrize(("region", "path", "variable"), PARSERS)
def test_every_parser_that_an_engine_ships_is_covered_or_said_to_be_not(
    region: str, path: Path, variable: str
) -> None:
    shipped = shipped_in(path, variable)
    assert len(shipped) > 20
    assert shipped - parsers_of(region) - set(NOT_COVERED) == set()


def test_no_row_names_a_parser_that_no_engine_ships() -> None:
    shipped = set().union(*(shipped_in(*place) for _, *place in PARSERS))
    assert {name for row in FORMATS for name in row.parsers.split()} - shipped == set()
    assert set(NOT_COVERED) <= shipped


def test_a_named_parser_leaves_its_own_marks_only() -> None:
    rows = formats_of("hermes", "qwen3")
    assert [row.opening for row in rows if row.region == Region.JSON] == ["<tool_call>"]
    (thinking,) = (row.parsers for row in rows if row.region == Region.THINKING)
    assert thinking.split()[0] == "deepseek_r1"


CALLS = 'get_weather(city="Oslo")\nget_time(city="Oslo")'


@pytest.mark.parametrize(
    ("text", "parser", "regions"),
    [
        ("[TOOL_CALLS]f[ARGS]{}", None, ["template", "json"]),
        ("[TOOL_CALLS]f[ARGS]{}", "hermes", ["prose"]),
        (CALLS, None, ["code"]),
        (CALLS, "olmo3", ["json"]),
        ("<tool_call>{}", "mine", ["prose"]),
    ],
    ids=["no name", "another's", "calls look like code", "unless named", "an unknown parser"],
)
def test_calls_are_those_of_the_named_parser(
    text: str, parser: str | None, regions: list[str]
) -> None:
    assert [kind for _, kind in pieces_of(text, marks=marks_of(parser))] == regions


def test_a_run_says_which_parsers_are_unknown() -> None:
    (unknown,) = unknown_parsers("mine", "qwen3")
    assert str(unknown).startswith(
        "the format of tool calls of parser mine is of no known kind: its text counts as prose"
    )
    (stated,) = unknown_parsers(None, "hf")
    assert stated.not_recognised == ("its marks stand in the checkpoint's response template",)
    assert unknown_parsers(None, None) == unknown_parsers("hermes", "deepseek-r1") == ()


@pytest.mark.parametrize(
    ("arguments", "parser"),
    [
        (["serve", "M", "--tool-call-parser", "hermes"], "hermes"),
        (["serve", "M", "--tool_call_parser=kimi_k2"], "kimi_k2"),
        (["serve", "M", "--tool-call-parser"], None),
        (["serve", "M"], None),
    ],
)
def test_a_parser_is_read_from_the_command_line(arguments: list[str], parser: str | None) -> None:
    assert named_parser(arguments, "--tool-call-parser") == parser


def test_written_answers_have_a_mark_of_every_row() -> None:
    answers = [(answer.text, by_character(answer.pieces)) for answer in written_answers()]
    assert not [
        row.opening
        for row in FORMATS
        if row.has_mark
        and not any(
            set(kinds[match.start() : match.end()]) == {Region.TEMPLATE}
            for text, kinds in answers
            for match in re.finditer(row.opening, text)
        )
    ]


def test_written_answers_of_each_format_are_classified_right() -> None:
    shares = shares_right()
    assert sum(answers for answers, _ in shares.values()) >= 200
    assert {name: share for name, (_, share) in shares.items() if share < 0.95} == {}


def test_a_query_without_a_fence_goes_on_to_its_clauses() -> None:
    query = "SELECT a\nFROM t\nWHERE a > 3\nORDER BY a;\n"
    code, prose = text_regions(f"{query}\nThis returns all the rows that are larger.")
    assert (code.region, prose.region, prose.start) == (Region.CODE, Region.PROSE, len(query))
