"""Marks that models put around tool calls and thinking, by the engine's parser that reads them.

One table, parser_marks.toml, has all of them. Its marks are those that the parsers of vLLM 0.32
(vllm/tool_parsers, vllm/reasoning, vllm/parser) and SGLang 0.5.23 (sglang/srt/function_call,
sglang/srt/parser/reasoning_parser.py) look for. A parser that is neither here nor in `NOT_COVERED`
is unknown: its calls are prose, and a run says so. To add one, add its name to the row whose marks
it looks for, or a row; tests/unit/test_regions.py walks the engines' lists of parsers.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from driftscope.errors import Unknown
from driftscope.vocabulary import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A pair of marks and the region between them."""

    region: str
    """JSON for a tool call, THINKING; PROSE for a mark that only frames ordinary text."""
    opening: str
    """Regular expression of the mark without capturing groups. It begins with `(?=` if the call has
    no mark, and is known by how it begins."""
    closing: str = ""
    """Regular expression of the marks that end it. Without one, a call ends with its JSON or Python
    value, if it is one, or else with the answer."""
    parsers: str = ""
    """Names of the engines' parsers that look for it, separated by spaces."""
    named: bool = False
    """Whether it is looked for only if the engine names one of `parsers`: its marks also occur in
    ordinary text."""

    @property
    def has_mark(self) -> bool:
        """Return whether a mark opens it."""
        return not self.opening.startswith("(?=")

    @property
    def begins_line(self) -> bool:
        """Return whether it is looked for at the beginning of a line only: it begins like text."""
        return re.match(r"(?:\(\?:)?<|◁|\\[\[\]]", self.opening) is None


def _formats() -> Iterator[Enclosure]:
    content = tomllib.loads((files("driftscope") / "parser_marks.toml").read_text("utf-8"))

    def whole(pattern: str) -> str:
        return re.sub(r"\{([A-Z_]+)\}", lambda name: whole(content["shared"][name[1]]), pattern)

    for kind, region in _KINDS.items():
        for opening, closing, parsers in content["marks"][kind]:
            yield Enclosure(
                region=region,
                opening=whole(opening),
                closing=whole(closing),
                parsers=parsers,
                named=kind == "named",
            )


_KINDS = {
    "tool": Region.JSON,
    "named": Region.JSON,
    "thinking": Region.THINKING,
    "frame": Region.PROSE,
}
FORMATS: Sequence[Enclosure] = tuple(_formats())

NOT_COVERED = {
    "hf": "its marks stand in the checkpoint's response template",
    "response_template": "its marks stand in the checkpoint's response template",
}
"""Parsers of either kind whose marks no row can hold, and why."""


def parsers_of(region: str) -> frozenset[str]:
    """Return the names of the tool parsers (JSON) or reasoning parsers (THINKING) in `FORMATS`."""
    return frozenset(
        name for row in FORMATS if row.region == region for name in row.parsers.split()
    )


def formats_of(tool_parser: str | None, reasoning_parser: str | None) -> tuple[Enclosure, ...]:
    """Return the rows to look for in answers of an engine with these parsers. None: the engine
    names none, and all rows are looked for that need no name. An unknown name has no rows."""
    asked = {Region.JSON: tool_parser, Region.THINKING: reasoning_parser}

    def applies(row: Enclosure) -> bool:
        names = row.parsers.split()
        if row.named:
            return tool_parser in names or reasoning_parser in names
        name = asked.get(row.region)
        return name is None or name in names

    return tuple(filter(applies, FORMATS))


def unknown_parsers(tool_parser: str | None, reasoning_parser: str | None) -> tuple[Unknown, ...]:
    """Return the parsers whose marks are unknown, for the notes of a run."""
    asked = (
        (Region.JSON, "the format of tool calls", tool_parser),
        (Region.THINKING, "the format of thinking", reasoning_parser),
    )
    return tuple(
        Unknown(
            what=f"{what} of parser {name}",
            instead="its text counts as prose",
            not_recognised=(NOT_COVERED.get(name, "its marks"),),
            adding="add the parser to a row of driftscope/parser_marks.toml",
        )
        for region, what, name in asked
        if name is not None and name not in parsers_of(region)
    )


def named_parser(arguments: Sequence[str], option: str) -> str | None:
    """Return the value of an option such as "--tool-call-parser" among a server's command-line
    arguments, which may be written with underscores or "="; None if it is not there."""
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == option:
            return value or next(iter(arguments[place + 1 : place + 2]), None)
    return None
