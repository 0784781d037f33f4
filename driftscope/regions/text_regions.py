"""Regions of a text, found by the marks of Markdown and of chat templates.

A block is a fence, an enclosure of `markers`, a table, a JSON value with which the answer begins,
or the prose between them. Fences follow CommonMark 0.31, section 4.5: a fence ends at a line of at
least as many of the same characters and nothing else, or at the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from driftscope.regions.fence_languages import fence_tag, language_of
from driftscope.regions.json_end import json_end
from driftscope.regions.markers import CLOSING, OPENED_BY, Enclosure
from driftscope.vocabulary import Language, Region

Span: TypeAlias = tuple[int, int]
"""Begin and end of a piece of text, in characters."""


@dataclass(frozen=True, slots=True)
class TextRegion:
    """Beginning of a piece of text of one region, which lasts to the beginning of the next."""

    start: int
    """Index of its first character."""
    region: str
    """One of `Region.ALL`."""
    boundary: bool
    """Whether a block begins here, or prose after a block. Numbers and list marks begin none, nor
    does the start of the text."""
    language: str = Language.NO_FENCE
    """Class of the language that the fence around it names, one of `Language.ALL`."""


def text_regions(
    text: str,
    special: Sequence[Span] = (),
    *,
    inside: Enclosure | None = None,
    constraint: str | None = None,
) -> list[TextRegion]:
    """Return the regions of an answer's text in order, the first at 0; none if the text is empty.

    `special`: pieces that are special tokens of the tokenizer, in order; a mark that is one takes
    effect inside a fence too. `inside`: the enclosure that the prompt opened. `constraint`: the
    region, JSON or GUIDED, to which all of the answer but its thinking was constrained.
    """
    scanner = _Scanner(text, special)
    if inside is not None:
        scanner.enclosed(inside)
    elif constraint is not None:
        scanner.thinking()
    elif end := json_end(text):
        scanner.block(Region.JSON, end)
    if constraint is not None and scanner.at < len(text):
        scanner.block(constraint, len(text))
    while scanner.at < len(text):
        scanner.next_block()
    return _with_special(scanner.regions, special, len(text))


def enclosure_left_open(text: str) -> Enclosure | None:
    """Return the enclosure that the end of a prompt leaves open; None if it leaves none."""
    inside: Enclosure | None = None
    for match in _MARK.finditer(text):
        if inside is None:
            inside = OPENED_BY.get(match[0])
        elif match[0] in inside.closing:
            inside = None
    return inside


def _any_of(marks: Sequence[str]) -> str:
    return "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))


_MARK = re.compile(_any_of((*OPENED_BY, *CLOSING)))
_BLOCK = re.compile(
    r"^ {0,3}(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)\n?"
    rf"|(?P<mark>{_any_of(tuple(OPENED_BY))})"
    r"|(?P<table>^[ \t]*\|[^\n]*(?:\n[ \t]*\|[^\n]*)*\n?)",
    re.MULTILINE,
)
_IN_PROSE = re.compile(
    r"(?P<markup>^[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t])|^#{1,6}(?=[ \t]))"
    r"|\$\$[^$]+\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\$[^$\n ](?:[^$\n]*[^$\n ])?\$"
    r"|\d(?:[\d.,:/%]*[\d%])?",
    re.MULTILINE | re.DOTALL,
)
_CHANGED_LINES = re.compile(r"^(?:(?:[+-]|@@)[^\n]*(?:\n|\Z))+", re.MULTILINE)
_DIFF_TAGS, _JSON_TAGS = ("diff", "patch"), ("json", "jsonc", "json5", "jsonl")


class _Scanner:
    """Reads a text block by block."""

    def __init__(self, text: str, special: Sequence[Span]) -> None:
        self._text = text
        self._special = frozenset(begin for begin, _ in special)
        self.at = 0
        """Index of the first character that is in no region yet."""
        self.regions: list[TextRegion] = []

    def next_block(self) -> None:
        """Read the prose up to the next block, and the block."""
        match = _BLOCK.search(self._text, self.at)
        self._prose(len(self._text) if match is None else match.start())
        if match is None:
            return
        if match["fence"]:
            self._fence(match)
        elif match["table"]:
            self.block(Region.MARKUP, match.end())
        else:
            self.block(Region.TEMPLATE, match.end())
            self.enclosed(OPENED_BY[match["mark"]])

    def block(self, region: str, end: int) -> None:
        """Read a whole block up to `end`."""
        self._add(self.at, region, boundary=True)
        self.at = end

    def thinking(self) -> None:
        """Read the thinking with which the text begins, if it does."""
        match = _BLOCK.match(self._text, len(self._text) - len(self._text.lstrip()))
        inside = OPENED_BY.get(match["mark"]) if match and match["mark"] else None
        if match and inside and inside.region == Region.THINKING:
            self.block(Region.TEMPLATE, match.end())
            self.enclosed(inside)

    def enclosed(self, inside: Enclosure) -> None:
        """Read to the end of an enclosure, and its closing mark."""
        closing = re.compile(_any_of(inside.closing)).search if inside.closing else None
        match = closing(self._text, self.at) if closing else None
        end = len(self._text) if match is None else match.start()
        if end > self.at:
            self._add(self.at, inside.region, boundary=False)
            self.at = end
        if match is not None:
            self._add(end, Region.TEMPLATE, boundary=False)
            self.at = match.end()

    def _fence(self, opening: re.Match[str]) -> None:
        end, after = self._end_of_fence(opening)
        tag = fence_tag(opening["info"])
        region, language = Region.JSON if tag in _JSON_TAGS else Region.CODE, language_of(tag)
        self._add(self.at, region, boundary=True, language=language)
        if tag in _DIFF_TAGS:
            for match in _CHANGED_LINES.finditer(self._text, opening.end(), end):
                self._add(match.start(), Region.DIFF, boundary=False, language=language)
                if match.end() < after:
                    self._add(match.end(), Region.CODE, boundary=False, language=language)
        self.at = after

    def _end_of_fence(self, opening: re.Match[str]) -> tuple[int, int]:
        """Return the end of a fence's content and of its closing line: that of the text if it is
        unclosed, the first special token that opens an enclosure if that comes first."""
        fence = opening["fence"]
        closing = re.compile(rf"^ {{0,3}}{re.escape(fence)}{fence[0]}*[ \t]*$\n?", re.MULTILINE)
        match = closing.search(self._text, opening.end())
        end, after = (len(self._text),) * 2 if match is None else match.span()
        for mark in _MARK.finditer(self._text, opening.end(), end) if self._special else ():
            if mark.start() in self._special and mark[0] in OPENED_BY:
                return mark.start(), mark.start()
        return end, after

    def _prose(self, end: int) -> None:
        begin, self.at = self.at, end
        if begin == end:
            return
        self._add(begin, Region.PROSE, boundary=True)
        for match in _IN_PROSE.finditer(self._text, begin, end):
            region = Region.MARKUP if match["markup"] else Region.NUMBER
            self._add(match.start(), region, boundary=False)
            if match.end() < end:
                self._add(match.end(), Region.PROSE, boundary=False)

    def _add(
        self, start: int, region: str, *, boundary: bool, language: str = Language.NO_FENCE
    ) -> None:
        """Add a region; one that begins where the last one does replaces it."""
        boundary = boundary and start > 0
        if self.regions and self.regions[-1].start == start:
            boundary |= self.regions.pop().boundary
        if self.regions and self.regions[-1].region == region and not boundary:
            return
        self.regions.append(TextRegion(start, region, boundary, language))


def _with_special(
    regions: Sequence[TextRegion], special: Sequence[Span], length: int
) -> list[TextRegion]:
    """Return the regions with each special token as a piece of the template."""
    cut: list[TextRegion] = []
    tokens = iter((*special, (length, length)))
    begin, end = next(tokens)
    for at, region in enumerate(regions):
        stop = regions[at + 1].start if at + 1 < len(regions) else length
        cut.append(region)
        while begin < stop:
            if begin >= region.start and region.region != Region.TEMPLATE:
                boundary = region.boundary and begin == region.start
                if begin == cut[-1].start:
                    cut.pop()
                cut.append(TextRegion(begin, Region.TEMPLATE, boundary))
                if end < stop:
                    cut.append(TextRegion(end, region.region, False, region.language))
            if end > stop:
                break
            begin, end = next(tokens)
    return _merged(cut)


def _merged(regions: Sequence[TextRegion]) -> list[TextRegion]:
    """Return the regions without those that go on with the region before."""
    kept: list[TextRegion] = []
    for each in regions:
        if not kept or each.boundary or each.region != kept[-1].region:
            kept.append(each)
    return kept
