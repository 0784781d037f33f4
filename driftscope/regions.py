"""Regions of an answer: which kind of text each token belongs to, and where the kind changes.

==========================  ====================================================================
`text_regions`              regions of a text: fences, tool calls, thinking, tables, numbers
`language_of`               the class of the language that a fence names
`copied_tokens`             tokens that repeat an earlier passage of prompt or answer
`answer_regions`            all of these, for the token ids of one request
`first_drafted`             places of a request's rounds among its regions
==========================  ====================================================================

A block is a fence, an enclosure with which a chat template marks a tool call or thinking, a table,
a JSON value with which the answer begins, or the prose between them. Fences follow CommonMark 0.31,
section 4.5: a fence ends at a line of at least as many of the same characters and nothing else, or
at the end of the text. Only numbers leave this module: places of tokens, and codes of
`driftscope.vocabulary.Region` and `Language`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from driftscope.vocabulary import Language, Region

_TAG = re.compile(r"[\s{.]*([^\s{}.,:=]*)")
"""First word of an info string; Pandoc writes it as {.python}, others add a file's name."""
_TAGS: Mapping[str, str] = {
    Language.PYTHON: "python py python3 py3 pycon ipython pyi",
    Language.JAVASCRIPT: "javascript js jsx mjs node typescript ts tsx",
    Language.JAVA: "java",
    Language.C: "c h c++ cpp cxx cc hpp objective-c objc cuda cu",
    Language.GO: "go golang",
    Language.RUST: "rust rs",
    Language.SHELL: "shell sh bash zsh fish console shell-session terminal powershell ps1 pwsh "
    "bat batch cmd",
    Language.SQL: "sql psql postgresql postgres mysql sqlite plsql tsql",
    Language.HTML: "html htm xhtml css scss sass less svg xml vue svelte",
    Language.JSON: "json jsonc json5 jsonl ndjson yaml yml toml",
}
_CLASSES = {tag: language for language, tags in _TAGS.items() for tag in tags.split()}


def fence_tag(info: str) -> str:
    """Return the tag of a fence's info string in lower case; "" if it names none."""
    match = _TAG.match(info)
    return match[1].lower() if match else ""


def language_of(tag: str) -> str:
    """Return the class of a tag, one of `Language.ALL`."""
    return _CLASSES.get(tag, Language.OTHER) if tag else Language.NONE


_START = re.compile(r"\s*(?:\{\s*(?:\"|\}|\Z)|\[\s*(?:[\[{\"\]\d-]|\Z))")
_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|[\[{]|[\]}]", re.DOTALL)


def json_end(text: str) -> int:
    """Return the index after the JSON object or array with which the text begins; 0 if it begins
    with none. A value that is cut short ends with the text."""
    if not _START.match(text):
        return 0
    depth = 0
    for match in _TOKEN.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A pair of marks and the region between them."""

    region: str
    opening: str
    closing: tuple[str, ...]
    """Marks that end it, any of them; none: it lasts to the end of the answer."""


def _tool(opening: str, *closing: str) -> Enclosure:
    return Enclosure(region=Region.JSON, opening=opening, closing=closing)


def _thinking(opening: str, *closing: str) -> Enclosure:
    return Enclosure(region=Region.THINKING, opening=opening, closing=closing)


ENCLOSURES: Sequence[Enclosure] = (
    _tool("<tool_call>", "</tool_call>"),  # Hermes, Qwen
    _tool("<|python_tag|>"),  # Llama 3
    _tool("[TOOL_CALLS]"),  # Mistral
    _tool("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi
    _tool("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # DeepSeek
    _tool("<|tool_call|>"),  # Granite
    _tool("<function=", "</function>"),  # Qwen 3 Coder, Seed
    _thinking("<think>", "</think>"),  # DeepSeek, Qwen
    _thinking("[THINK]", "[/THINK]"),  # Mistral
    _thinking("<seed:think>", "</seed:think>"),  # Seed
    _thinking("<|channel|>analysis<|message|>", "<|end|>", "<|return|>"),  # gpt-oss
)
OPENED_BY: Mapping[str, Enclosure] = {pair.opening: pair for pair in ENCLOSURES}
CLOSING = tuple(sorted({mark for pair in ENCLOSURES for mark in pair.closing}))


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
    for region in regions:
        if not kept or region.boundary or region.region != kept[-1].region:
            kept.append(region)
    return kept


_SPACE = "\u2581"
"""SentencePiece's mark for a space before a piece, which decoding a single token drops."""


_MARKS = frozenset((*OPENED_BY, *CLOSING))


class TokenTexts:
    """Texts of a tokenizer's tokens; each id is decoded once."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: has `decode`, `convert_ids_to_tokens` and `all_special_ids`, as tokenizers
        of transformers and vLLM have, and may have `added_tokens_decoder`."""
        self._tokenizer = tokenizer
        self._special = frozenset(_special_ids(tokenizer))
        self._texts: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; bytes that are no whole character become U+FFFD."""
        known = self._texts
        try:
            return [known[token] for token in ids]
        except KeyError:
            for token in set(ids) - known.keys():
                known[token] = self._decoded(token)
            return [known[token] for token in ids]

    def is_special(self, token: int) -> bool:
        """Return whether the token is special, or a mark of `markers` that is one token."""
        return token in self._special

    def _decoded(self, token: int) -> str:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        piece = self._tokenizer.convert_ids_to_tokens([token])[0]
        if isinstance(piece, str) and piece.startswith(_SPACE) and not text.startswith(" "):
            return f" {text}"
        return text


def _special_ids(tokenizer: Any) -> Iterator[int]:
    yield from map(int, tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    for token, text in added.items():
        if getattr(text, "special", False) or str(text) in _MARKS:
            yield int(token)


PASSAGE = 8
"""Number of tokens in a row that have to occur before."""
_SEED = 0x5DEECE66D


def copied_tokens(prompt: Sequence[int], answer: Sequence[int]) -> NDArray[np.bool_]:
    """Return, for each token of the answer, whether it lies in PASSAGE tokens of the answer in a
    row that occur earlier in the prompt or the answer; [answer tokens], bool.

    Passages are compared by a hash of 64 bits.
    """
    tokens = np.concatenate([np.asarray(prompt, np.int64), np.asarray(answer, np.int64)])
    copied = np.zeros(len(tokens) + 1, dtype=np.int64)
    if len(answer) >= PASSAGE and len(tokens) > PASSAGE:
        starts = np.flatnonzero(_occurred_before(tokens))
        starts = starts[starts >= len(prompt)]
        np.add.at(copied, starts, 1)
        np.add.at(copied, starts + PASSAGE, -1)
    return np.asarray(np.cumsum(copied[:-1])[len(prompt) :] > 0)


def _occurred_before(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, for each passage, whether an equal one begins before it; [tokens - PASSAGE + 1]."""
    weights = np.random.default_rng(_SEED).integers(
        2**63, size=(PASSAGE, 2), dtype=np.uint64
    ) | np.uint64(1)
    with np.errstate(over="ignore"):
        words = tokens.astype(np.uint64) + np.uint64(1)
        hashes = np.zeros(len(tokens) - PASSAGE + 1, dtype=np.uint64)
        for place in range(PASSAGE):
            there = words[place : place + len(hashes)] * weights[place, 0]
            hashes += (there ^ (there >> np.uint64(29))) * weights[place, 1]
    order = np.argsort(hashes, kind="stable")
    repeated = np.zeros(len(hashes), dtype=bool)
    repeated[order[1:]] = hashes[order[1:]] == hashes[order[:-1]]
    return repeated


def first_drafted(positions: Iterable[int], prompt_tokens: int) -> list[int]:
    """Return the token that each round drafts first, by its place in the answer, from 0.

    `positions` are those of VerifyRow: the round's last verified slot is one before the token that
    the target added, and the drafter's first token comes after that one.
    """
    return [position + 2 - prompt_tokens for position in positions]


def regions_at(tokens: Iterable[int], starts: Sequence[int]) -> list[int]:
    """Return the index in `starts`, ascending and not empty, of the region of each token."""
    return [max(bisect_right(starts, token) - 1, 0) for token in tokens]


PROMPT_TAIL = 64
"""Number of a prompt's last tokens in which an opened enclosure is looked for: templates open
thinking and forced tool calls right before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRegions:
    """Regions of an answer, as columns of `RequestRow` hold them; token 0 is the answer's first."""

    starts: list[int]
    codes: list[int]
    languages: list[int]
    boundaries: list[int]
    copies: list[int]


CONSTRAINTS = {
    **dict.fromkeys(("json", "json_object"), Region.JSON),
    **dict.fromkeys(("regex", "choice", "grammar"), Region.GUIDED),
}
"""Region of an answer by its kind of constraint in `RequestRow.structured`. A structural tag
constrains parts of an answer only, which are found like those of any other."""


def answer_regions(
    texts: TokenTexts,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    constraint: str | None = None,
    from_start: bool = False,
) -> AnswerRegions:
    """Return the regions of an answer. `constraint`: as of `text_regions`; `from_start`: it held
    from the first token on, whatever the prompt opened."""
    pieces = texts.of(answer)
    ends = list(accumulate(map(len, pieces)))
    regions = text_regions(
        "".join(pieces),
        _special(texts, answer, ends),
        inside=None if constraint and from_start else _left_open(texts, prompt),
        constraint=constraint,
    )
    places = np.searchsorted(ends, [region.start for region in regions], side="right").tolist()
    # Of several regions that begin in one token, the last is that of most of what follows.
    last = dict(zip(places, regions, strict=True))
    boundaries = {at for at, region in zip(places, regions, strict=True) if region.boundary}
    return AnswerRegions(
        starts=list(last),
        codes=[Region.ALL.index(region.region) for region in last.values()],
        languages=[Language.ALL.index(region.language) for region in last.values()],
        boundaries=sorted(boundaries),
        copies=_runs(copied_tokens(prompt, answer)),
    )


def _left_open(texts: TokenTexts, prompt: Sequence[int]) -> Enclosure | None:
    return enclosure_left_open("".join(texts.of(prompt[-PROMPT_TAIL:])))


def _special(texts: TokenTexts, answer: Sequence[int], ends: Sequence[int]) -> list[Span]:
    return [
        (ends[at - 1] if at else 0, ends[at])
        for at, token in enumerate(answer)
        if texts.is_special(token)
    ]


def _runs(flags: NDArray[np.bool_]) -> list[int]:
    """Return begin and end of each run of true flags, alternating."""
    padded = np.concatenate([[False], flags, [False]])
    return [int(place) for place in np.flatnonzero(padded[1:] != padded[:-1])]
