"""Marks of tool calls and thinking, and the lists of parsers that engines ship."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.written_answers import shares_right, written_answers

from driftscope.parser_marks import (
    FORMATS,
    NOT_COVERED,
    formats_of,
    named_parser,
    parsers_of,
    unknown_parsers,
)
from driftscope.regions import marks_of, text_regions
from driftscope.vocabulary import Region

REPOSITORY = Path(__file__).parents[2]
SGLANG = ".venv/sglang-0.5.23/lib/python3.11/site-packages/sglang"


def named_in(path: Path, variable: str) -> Iterator[str]:
    """Yield the strings of a list, or the keys of a dictionary, that a module assigns."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == variable:
            yield from map(str, ast.literal_eval(node.value))


def engines() -> dict[str, tuple[Path, Mapping[str, tuple[str, str]]]]:
    """Return, by engine, its folder and the file and variable with its parsers of each region."""
    vllm = find_spec("vllm")
    return {
        "vllm": (
            Path((vllm and vllm.origin) or "/nowhere").parent,
            {
                Region.JSON: ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
                Region.THINKING: ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
            },
        ),
        "sglang": (
            REPOSITORY / SGLANG,
            {
                Region.JSON: ("srt/function_call/parser_names.py", "TOOL_CALL_PARSER_NAMES"),
                Region.THINKING: ("srt/parser/reasoning_parser_names.py", "REASONING_PARSER_NAMES"),
            },
        ),
    }


@pytest.mark.parametrize("region", [Region.JSON, Region.THINKING])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_parser_that_an_engine_ships_is_covered_or_said_to_be_not(
    engine: str, region: str
) -> None:
    folder, lists = engines()[engine]
    file, variable = lists[region]
    if not (folder / file).is_file():
        pytest.skip(f"{engine} has no {file} here")
    shipped = set(named_in(folder / file, variable))
    assert len(shipped) > 20
    assert shipped - parsers_of(region) - set(NOT_COVERED) == set()


def test_no_row_names_a_parser_that_no_engine_ships() -> None:
    shipped = set()
    for folder, lists in engines().values():
        for file, variable in lists.values():
            if not (folder / file).is_file():
                pytest.skip(f"{folder} has no {file}")
            shipped |= set(named_in(folder / file, variable))
    assert {name for row in FORMATS for name in row.parsers.split()} - shipped == set()
    assert set(NOT_COVERED) <= shipped


def test_a_named_parser_leaves_its_own_marks_only() -> None:
    rows = formats_of("hermes", "qwen3")
    calls = [row.opening for row in rows if row.region == Region.JSON]
    assert calls == ["<tool_call>"]
    assert [row.parsers.split()[0] for row in rows if row.region == Region.THINKING] == [
        "deepseek_r1"
    ]
    text = "[TOOL_CALLS]f[ARGS]{}"
    assert [each.region for each in text_regions(text)] == ["template", "json"]
    assert [each.region for each in text_regions(text, marks=marks_of("hermes"))] == ["prose"]


def test_calls_that_look_like_text_need_the_name_of_their_parser() -> None:
    text = 'get_weather(city="Oslo")\nget_time(city="Oslo")'
    assert [each.region for each in text_regions(text)] == ["code"]
    assert [each.region for each in text_regions(text, marks=marks_of("olmo3"))] == ["json"]


def test_calls_of_an_unknown_parser_are_prose_and_the_run_says_so() -> None:
    assert [each.region for each in text_regions("<tool_call>{}", marks=marks_of("mine"))] == [
        "prose"
    ]
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
    answers = list(written_answers())
    absent = [
        row.opening
        for row in FORMATS
        if row.has_mark
        and not any(
            set(answer.kinds[match.start() : match.end()]) == {Region.TEMPLATE}
            for answer in answers
            for match in re.finditer(row.opening, answer.text)
        )
    ]
    assert absent == []


def test_written_answers_of_each_format_are_classified_right() -> None:
    shares = shares_right()
    assert sum(answers for answers, _ in shares.values()) >= 200
    assert {name: share for name, (_, share) in shares.items() if share < 0.95} == {}
