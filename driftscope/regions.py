"""Regions of an answer: which kind of text each token belongs to, and where the kind changes.

==========================  ====================================================================
`text_regions`              regions of a text: fences, tool calls, thinking, tables, numbers
`marks_of`                  marks of tool calls and thinking that an engine's parsers look for
`value_end`                 end of a JSON value
`language_of`               the class of the language that a fence names
`copied_tokens`             tokens that repeat an earlier passage of prompt or answer
`answer_regions`            all of these, for the token ids of one request
`first_drafted`             places of a request's rounds among its regions
==========================  ====================================================================

A block is a fence, a diff, a tool call or thinking between the marks of
`driftscope.parser_marks`, a table, a JSON value that begins a line, lines of code without a fence,
or the prose between them. Fences follow CommonMark 0.31, section 4.5, but may be indented as list
items are: a fence ends at a line of at least as many of the same characters and nothing else, at a
paragraph of prose if nothing closes it, or at the end of the text. Only numbers leave this module:
places of tokens, and codes of `driftscope.vocabulary.Region` and `Language`.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from driftscope.parser_marks import FORMATS, Enclosure, formats_of
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


_DECODER = json.JSONDecoder(strict=False)
_VALUE = re.compile(
    r"\{\s*(?:(?://|#|/\*)[^\n]*\n\s*)*(?:([\"'])(?:(?!\1)[^\\\n]|\\.)*(?:\1\s*(?::|\Z)|\Z)"
    r"|[A-Za-z_]\w*\s*:\s*[\"'\d\[{-]|\}|\Z)"
    r"|\[\s*(?:[\[{\"\]]|\Z)|(?P<plain>\[\s*(?:[\d-]|true\b|false\b|null\b))"
)
"""Beginning of a JSON object or array; an array of numbers also looks like a reference."""
_CALLS = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")
"""Beginning of a list of calls in Python's syntax."""
_CUT_NUMBERS = re.compile(r"[\[\]\s\d.,eE+truefalsn-]*\Z")
_TOKEN = re.compile(
    r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\\n]|\\.)*'|[\[{(]|[\]})]|\n[ \t]*\n", re.DOTALL
)
_MEMBERS = re.compile(
    r"(?:[;,]?[ \t]*\n[ \t]*(?:\"[^\"\n]+\"[ \t]*:[^\n]*|[\]}][\]},; \t]*(?=\n|\Z)))+"
)
_NEXT_VALUE = re.compile(r"[;,]?[ \t]*\n?[ \t]*(?=[\[{])")


def value_end(text: str, at: int = 0, *, calls: bool = False) -> int:
    """Return the index after the JSON object or array that begins at `at`, or with `calls` the list
    of Python calls; 0 if none does. A value that is cut short ends with the text, if no blank line
    comes before."""
    match = _VALUE.match(text, at) or (_CALLS.match(text, at) if calls else None)
    if match is None:
        return 0
    try:
        return int(_DECODER.raw_decode(text, at)[1])
    except (ValueError, RecursionError):
        if match.lastgroup:
            return len(text) if _CUT_NUMBERS.match(text, at) else 0
    depth = 0
    for token in _TOKEN.finditer(text, at):
        sign = token[0][0]
        if sign == "\n":
            return token.start() if _KEYED.match(text, at) else 0
        if sign in "[{(":
            depth += 1
        elif sign in "]})":
            depth -= 1
            if depth <= 0:
                return token.end()
    return len(text)


def values_end(text: str, at: int = 0, *, calls: bool = False) -> int:
    """Return the index after all values from `at` on, one a line or separated by a comma or a
    semicolon, and after the members that follow brackets too many; 0 if there is none."""
    end = value_end(text, at, calls=calls)
    while (
        end
        and (gap := _NEXT_VALUE.match(text, end))
        and (after := value_end(text, gap.end(), calls=calls))
    ):
        end = after
    members = _MEMBERS.match(text, end) if end else None
    return members.end() if members else end


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
    does prose with which the text starts."""
    language: str = Language.NO_FENCE
    """Class of the language that the fence around it names, one of `Language.ALL`."""


def text_regions(
    text: str,
    special: Sequence[Span] = (),
    *,
    inside: Enclosure | None = None,
    constraint: str | None = None,
    marks: ParserPatterns | None = None,
) -> list[TextRegion]:
    """Return the regions of an answer's text in order, the first at 0; none if the text is empty.

    `special`: pieces that are special tokens of the tokenizer, in order; a mark that is one takes
    effect inside a fence too. `inside`: the enclosure that the prompt opened. `constraint`: the
    region, JSON or GUIDED, to which all of the answer but its thinking was constrained. `marks`:
    those of the engine's parsers; None: of all that need no name.
    """
    scanner = _Scanner(text, special, marks or marks_of())
    if inside is not None:
        scanner.enclosed(inside)
    elif constraint is not None:
        scanner.thinking()
    if constraint is not None and scanner.at < len(text):
        scanner.block(constraint, len(text))
    while scanner.at < len(text):
        scanner.next_block()
    return _with_special(scanner.regions, special, len(text))


class ParserPatterns:
    """Patterns of the marks of an engine's parsers."""

    def __init__(self, formats: Sequence[Enclosure]) -> None:
        anywhere = [row for row in formats if not row.begins_line]
        in_line = [row for row in formats if row.begins_line]
        marks = [row for row in formats if row.has_mark]
        self.anywhere = re.compile(f"{_alternatives(anywhere)}|{_INLINE}")
        signs = rf"(?=[<\[\]◁])(?:{_alternatives(anywhere)})"
        self.at_line = re.compile(rf"[ \t>]*(?:{signs}|{_alternatives(in_line)}|{_LINE})")
        """A block that begins a line."""
        self.calls = re.compile(
            _alternatives([row for row in anywhere if row.region == Region.JSON])
        )
        opening = [row for row in marks if row.region != Region.PROSE]
        self._at_end = re.compile(rf"(?:{_alternatives(opening)})\s*\Z")
        parts = [part for row in marks for part in (row.opening, row.closing) if part]
        self._any = re.compile("|".join(parts))

    def is_mark(self, text: str) -> bool:
        """Return whether a text is a mark and nothing else."""
        return self._any.fullmatch(text) is not None

    def left_open(self, prompt: str) -> Enclosure | None:
        """Return the enclosure that a prompt's very end opens; None if it opens none. What a
        question mentions comes before the header of the answer's turn, and opens nothing."""
        match = self._at_end.search(prompt)
        return None if match is None else _row(match)


@functools.cache
def marks_of(tool_parser: str | None = None, reasoning_parser: str | None = None) -> ParserPatterns:
    """Return the marks of an engine with these parsers, see `formats_of`."""
    return ParserPatterns(formats_of(tool_parser, reasoning_parser))


_FIRST = re.compile(r"(?:\(\?[:=])?((?:\\[^\w\s]|[\w<◁])(?:(?:\\[^\w\s]|[\w/｜])(?![?*+{]))?)")
"""First one or two characters of a mark, as they stand in its pattern."""


def _alternatives(rows: Sequence[Enclosure]) -> str:
    """Return a pattern with one group for each row, named by its place in `FORMATS`. Rows of the
    same first two characters are tried together: most text has none of them."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        first = _FIRST.match(row.opening)
        group = f"(?P<_{FORMATS.index(row)}>{row.opening})"
        groups.setdefault(first[1] if first else "", []).append(group)
    return (
        "|".join(f"(?={first})(?:{'|'.join(group)})" for first, group in groups.items()) or "(?!)"
    )


def _row(match: re.Match[str]) -> Enclosure:
    return FORMATS[int(str(match.lastgroup)[1:])]


_INLINE = r"(?P<inline>(?<=\s)(?=\{)|(?<=: )(?=\[))"
_PIPE = r"(?=[^\n|]*\|)"
_RULE = r"[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*(?=\n|\Z)"
"""Delimiter row of a table: GitHub Flavored Markdown 0.29, section 4.10."""
_ENDS = r"[ \t]*(?:(?:#|//)[^\n]*)?(?=\n|\Z)"
_BLANKS = r"(?:[ \t]*\n)"
_COMMENT = r"(?:#|//)[^\n]*\n"
_NAME = r"[A-Za-z_][\w.]*(?:\[[^\n\]]*\])*"
_NAMES = rf"{_NAME}(?:, {_NAME})*"
_STATEMENT = (
    r"(?:(?:async )?def \w+[(:]|class \w+[(:]|(?<= {4})(?:return|raise|yield|elif|else|except)\b"
    r"|(?:const|let|var|val) (?:[\w$]+|[\[{][^\n=]*[\]}])(?: ?: ?[^\n=]{1,40}| \w+)? ?="
    rf"|(?:from [\w.]+ )?import (?:[\w.*]+(?:(?:,| as) [\w.]+)*;?{_ENDS}|[^\n]* from [\"'])"
    r"|(?:use|using|package) [\w.:]+;|#(?:include|define|if|ifn?def|endif|pragma|!/)\b"
    r"|(?:SELECT|INSERT INTO|DELETE FROM|CREATE (?:TABLE|VIEW|INDEX|DATABASE)|ALTER TABLE) [^\n]"
    r"|<[?!](?:php|xml|DOCTYPE)|</?(?:html|head|body|main|header|footer|nav|section|div|span|p|a|br"
    r"|[ou]l|li|table|thead|tbody|t[rdh]|form|input|select|option|button|label|img|svg|script|style"
    rf"|link|meta|title|h[1-6])\b(?:(?:[^\n]*>|[^<>\n]*){_ENDS}|[^\n]*<[^<>\n]*\Z)"
    r"|(?:sudo|pip3?|npm|git|docker|apt|conda) (?:-\S+ )*"
    rf"(?:install|run|build|clone|add|commit|push|pull|init)\b(?: [^\s,]*[\w/]){{0,9}}{_ENDS}"
    rf"|(?!for example)(?:for|if|while|with|try)\b[^\n]*:\n(?: {{4}}|\t)(?![-*+\d ])"
    r"|@[\w.]+(?:\([^\n]*\))?\n[ \t]*(?:@|async |def |class |public )"
    r"|(?<=>>> )\S|\$ [a-z]|(?:print|puts|echo) [\"']"
    # Lines of the C family, calls, and assignments of what is no number.
    rf"|[\w.$@:<>*&\[\]]+(?: [\w.$:<>*&\[\]]+){{0,4}}"
    rf"(?:(?:\(| ?=| <<)[^\n]*[;{{]| ?[({{][^\n]*(?<=\{{)){_ENDS}"
    r"|(?:\w+ ){0,4}(?:class \w[^\n.]*|\w+\([^\n]*\))\n[ \t]*\{"
    rf"|[A-Za-z_][\w.:]{{2,}}!?\((?:(?:(?!\) ?[A-Za-z]{{2}})[^\n])*\)[;.]?{_ENDS}|(?:\S|, )*\Z)"
    rf"|{_NAMES} [-+*/:]?=(?:\Z| (?=[^\n]*?(?:[\"'\[{{]|[a-z_][._]\w|\w{{4}}\())))"
)
"""Beginning of a line that is code in one of the usual languages, and hardly ever prose."""
_AFTER_CODE = (
    r"(?:[ \t]+(?!(?:[-*+]|\d+[.)]) )\S|[)}\]{@#]|//|/\*|>>>|(?:\S|, )+\Z"
    r"|(?:assert|await|break|case|do|done|echo|elif|else|end|except|fi|finally|for|if|print|public|puts"
    r"|raise|return|try|while|with|yield|FROM|WHERE|(?:[A-Z]+ )?JOIN|(?:GROUP|ORDER) BY|HAVING"
    rf"|VALUES|LIMIT|UNION)\b|{_NAMES} [-+*/:!=]?= |{_STATEMENT})"
)
"""Beginning of a line that is code because it follows one."""
_CLOSING_FENCE = rf"`{{3,}}[ \t]*(?:\Z|\n(?={_BLANKS}+[A-Z][\w']* ))"
"""A fence that closes what the prompt left open: a paragraph of prose follows."""
_CODE = re.compile(
    rf"[^\n]*(?:\n|\Z)(?:{_AFTER_CODE}[^\n]*(?:\n|\Z)|{_BLANKS}+"
    r"(?= {2}(?! ?[A-Z][a-z]* [a-z])|\t|[)}\]{]"
    rf"|(?:{_COMMENT}{_BLANKS}*){{0,9}}(?:{_STATEMENT}|\w*_(?:\S|, )*\Z)))*"
    rf"(?:`{{3,}}[ \t]*(?:\n|\Z)|{_BLANKS}+{_CLOSING_FENCE})?"
)
"""Lines of code without a fence, from the first on."""
_PARAGRAPH = re.compile(rf"\n{_BLANKS}(?=[A-Z][a-z']*(?: [a-z'’`(][^\s(=]*){{2}})")
"""Where a fence ends that nothing closes."""
_LINE = (
    r"(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?"
    rf"(?:(?P<stray>{_CLOSING_FENCE})"
    r"|(?P<fence>`{3,}(?=[^`\n]*(?:\n|\Z))(?![ \t]*\S+(?: [A-Za-z]+){3})|~{3,})(?P<info>[^\n]*)\n?)"
    rf"|(?P<table>{_PIPE}(?:[^\n]*\n(?=[^\n]*\|){_RULE}(?:\n{_PIPE}[^\n]*)*\n?"
    r"|(?:\|[^\n]*\|[ \t]*(?:\n[ \t>]*|\Z)){2,}))"
    r"|(?P<replacement>(?:<{5,9}|-{5,9}) SEARCH\b)"
    r"|(?P<patch>\*\*\* Begin Patch\b)"
    r"|(?P<diff>diff --git |--- [^\n]+\n\+\+\+ |@@[^\n]*\n(?=[-+ ]))"
    r"|(?P<value>(?:`(?=[\[{][ \t]*\n))?(?=[\[{]))"
    rf"|(?P<statement>(?:{_COMMENT}|{_NAME} [-+*/:=!]?= [^\n]*\n){{0,9}}{_STATEMENT})"
)
"""Blocks that begin a line and need no mark."""
_CANDIDATE = re.compile(r"[\n<\[\]◁{]")
"""First characters of blocks; a line feed stands for the line after it."""
_MATHS = (
    r"(?:equation|align(?:at|ed)?|gather(?:ed)?|multline|eqnarray|flalign|split|array|d?cases"
    r"|(?:[pbvBV]|small)?matrix)\*?"
)
_TERM = (
    r"(?:\$?\d+(?:[.,]\d+)*[A-Za-z]{0,2}|[A-Za-z]\d?|[a-z]C[a-z]|sine?|cos|tan|log|ln|exp|sqrt"
    r"|mod(?:ulo)?)(?![\w'’])"
)
_JOIN = r" ?(?:[-−/()|<>!²³] ?)+"
_OPERATOR = (
    r"(?: ?(?:[-−/()|<>!²³] ?)*(?!\*\*)[=*^×÷+·≈≤≥] ?(?:[-−/()|<>!²³=*^×÷+·≈≤≥] ?)*"
    r"|(?<=\d) x (?=\d))"
)
_FORMULA = (
    rf"(?<![\w.*])[-−(|√]{{0,3}}{_TERM}(?:{_JOIN}{_TERM}){{0,9}}{_OPERATOR}{_TERM}"
    rf"(?:(?:{_OPERATOR}|{_JOIN}){_TERM})*[)|!²³]*"
)
"""Numbers and letters that at least one sign of arithmetic or comparison joins."""
_IN_PROSE = re.compile(
    r"(?P<markup>^[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t])|^#{1,6}(?=[ \t])"
    r"|(?<=[^\n]\n)[-=]{3,}[ \t]*$)"
    r"|\$(?:\$[^$]+\$\$|[^$\n ](?:[^$\n]*[^$\n ])?\$"
    r"|(?:(?<![^\n]\$)|(?=\$[^$]*[\\^]))\$(?:[^$\n]|\n(?![ \t]*\n))+\Z)"
    r"|\\(?:\[.+?\\\]|\(.+?\\\)"
    rf"|begin\{{(?P<maths>{_MATHS})\}}.*?(?:\\end\{{(?P=maths)\}}|(?=\n[ \t]*\n)|\Z)"
    r"|(?<![^\n]\\)\[(?:[^\n]|\n(?![ \t]*\n))+\Z)"
    rf"|{_FORMULA}|\d(?:[\d.,:/%]*[\d%])?",
    re.MULTILINE | re.DOTALL,
)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_DIFF_LINE = re.compile(
    r"[-+ @\\]|diff --git |index |(?:new|deleted) file|(?:old|new) mode|(?:dis)?similarity "
    r"|rename |copy |Binary files "
)
"""Lines between the hunks of a diff, as git and GNU diff write them."""
_PATCH_END = re.compile(r"\n\*\*\* End Patch[^\n]*(?:\n|\Z)")
_REPLACEMENT_END = re.compile(r"\n(?:>{5,9}|\+{5,9}) REPLACE[^\n]*(?:\n|\Z)")
_FENCED_DIFF = re.compile(
    r"\n[ ]*(?:diff --git |--- [^\n]+\n\+\+\+ |@@ |\*\*\* Begin Patch\b|(?:<{5,9}|-{5,9}) SEARCH\b)"
)
_DIFF_TAGS, _JSON_TAGS = ("diff", "patch"), ("json", "jsonc", "json5", "jsonl", "ndjson")
_NESTING_TAGS = ("markdown", "md", "mdx")
"""Languages whose fences models let hold fences of the same length, which CommonMark does not."""
_KEYED = re.compile(r"\s*(?:\[\s*)?\{\s*(?:(?://|#|/\*)[^\n]*\n\s*)*[\"']")
_AFTER_VALUE = re.compile(r"[;,`]?[ \t]*(?:\n|\Z|<)")
_SENTENCE_END = ".!?:;…。！？：)]}>」』"
_QUOTES = "`'\"(“‘*_"
_AFTER_MENTION = tuple(" \t`'\").,;:!?”’*_")


@functools.cache
def _changes(indentation: str) -> re.Pattern[str]:
    """Return the pattern of the changed lines of a diff that is indented."""
    return re.compile(
        rf"^{indentation}(?:(?:<{{5,9}}|-{{5,9}}) SEARCH\b(?s:.*?)"
        rf"(?:^{indentation}(?:>{{5,9}}|\+{{5,9}}) REPLACE[^\n]*(?:\n|\Z)|\Z)"
        rf"|(?:[+-]|@@)[^\n]*(?:\n|\Z)(?:{indentation}(?:[+-]|@@)[^\n]*(?:\n|\Z))*)",
        re.MULTILINE,
    )


class _Scanner:
    """Reads a text block by block."""

    def __init__(self, text: str, special: Sequence[Span], marks: ParserPatterns) -> None:
        self._text, self._marks = text, marks
        self._special = [begin for begin, _ in special]
        self.at = 0
        """Index of the first character that is in no region yet."""
        self.regions: list[TextRegion] = []
        self._had_block = False
        self._no_value = 0
        """Index before which no JSON value begins."""
        self._unclosed: tuple[str, ...] = ()
        """Fences of which it is known that nothing closes them, nor a longer one."""

    def next_block(self) -> None:
        """Read the prose up to the next block, and the block."""
        at_line, anywhere = self._marks.at_line, self._marks.anywhere
        if self._read_block(at_line, self.at):
            return
        for candidate in _CANDIDATE.finditer(self._text, self.at):
            if candidate[0] == "\n":
                found = self._read_block(at_line, candidate.end())
            else:
                found = self._read_block(anywhere, candidate.start())
            if found:
                return
        self._prose(len(self._text))

    def block(self, region: str, end: int) -> None:
        """Read a whole block up to `end`."""
        self._add(self.at, region, boundary=True)
        self._had_block = True
        self.at = end

    def thinking(self) -> None:
        """Read the thinking with which the text begins, if it does."""
        match = self._marks.at_line.match(self._text, len(self._text) - len(self._text.lstrip()))
        if match and str(match.lastgroup)[0] == "_" and _row(match).region == Region.THINKING:
            self.block(Region.TEMPLATE, match.end())
            self.enclosed(_row(match))

    def enclosed(self, inside: Enclosure) -> None:
        """Read to the end of an enclosure, and its closing mark."""
        end, after = self._end_of_enclosure(inside)
        self._had_block = True
        if end > self.at:
            self._add(self.at, inside.region, boundary=False)
        if after > end:
            self._add(end, Region.TEMPLATE, boundary=False)
        self.at = after

    def _read_block(self, pattern: re.Pattern[str], at: int) -> bool:
        """Read the prose before the block that begins at `at`, and the block, if there is one."""
        match = pattern.match(self._text, at)
        if match is None:
            return False
        kind = str(match.lastgroup)
        if kind[0] == "_":
            return self._mark(match)
        if kind in ("value", "inline"):
            return self._value(match.end(), in_line=kind == "inline")
        begin = match.start("fence") if kind == "info" else at
        self._prose(begin if self._text[at:begin].strip(" \t>") else at)  # not past a list mark
        if kind == "info":
            self._fence(match)
        elif kind in ("table", "stray"):
            self.block(Region.MARKUP if kind == "table" else Region.CODE, match.end())
        elif kind == "statement":
            code = _CODE.match(self._text, at)
            self.block(Region.CODE, code.end() if code else match.end())
        else:
            self.block(Region.CODE, self._end_of_diff(kind, at))
            self._changed_lines(at, self.at, self.at)
        return True

    def _mark(self, match: re.Match[str]) -> bool:
        row, begin = _row(match), match.start(str(match.lastgroup))
        if self._text[match.start() : begin].isspace():
            begin = match.start()
        if not row.has_mark and not row.closing:
            return self._value(match.end(), calls=True)
        if row.has_mark and not self._counts(begin, match.end(), opens=row):
            return False
        self._prose(begin)
        if row.region == Region.PROSE:
            self._add(begin, Region.TEMPLATE, boundary=False)
            self.at = match.end()
            return True
        self.block(Region.TEMPLATE if row.has_mark else row.region, match.end())
        self.enclosed(row)
        return True

    def _counts(self, begin: int, end: int, *, opens: Enclosure | None = None) -> bool:
        """Return whether a mark takes effect, and is not one that the text mentions.

        It does where it begins the text, a line or what follows another mark. In the middle of a
        line, what surrounds it decides: a mention stands between words, quotes or parentheses, and
        no JSON follows it. A mark that is one token or has the signs of a control token needs one
        sign that it is not mentioned; one that opens an enclosure and is spelled out needs both.
        """
        text = self._text
        line = text[max(text.rfind("\n", self.at, begin) + 1, self.at) : begin].strip()
        if not line.strip("> ") or begin == end:
            return not line or begin == end
        before, after = text[begin - 1], text[end : end + 1]
        if before == "`":
            return False
        if opens and opens.region == Region.JSON and _KEYED.match(text, end):
            return True
        if before in " \t":
            good_before = line[-1] in _SENTENCE_END
        else:
            good_before = before in _SENTENCE_END or not (opens or before in _QUOTES)
        good_after = after not in _AFTER_MENTION
        mark = text[begin:end]
        is_token = "|" in mark or mark[0] in "]◁" or "｜" in mark or self._is_special(begin)
        if is_token or not opens:
            return good_before or good_after
        return good_before and good_after

    def _is_special(self, begin: int) -> bool:
        at = bisect_left(self._special, begin)
        return at < len(self._special) and self._special[at] == begin

    def _end_of_enclosure(self, inside: Enclosure) -> tuple[int, int]:
        """Return the end of an enclosure's content, and that of its closing mark."""
        text, begin, value = self._text, self.at, 0
        if inside.region == Region.JSON:
            blanks = re.compile(r"\s*").match(text, begin)
            value = values_end(text, blanks.end() if blanks else begin, calls=True)
        if inside.closing:
            for match in re.compile(inside.closing).finditer(text, value or begin):
                if self._counts(*match.span()):
                    return match.span()
        if inside.region == Region.THINKING:
            # A call ends thinking that has no end of its own, as for the engines' parsers.
            for match in self._marks.calls.finditer(text, begin):
                if self._counts(*match.span(), opens=_row(match)):
                    return match.start(), match.start()
        end = value or len(text)
        return end, end

    def _value(self, begin: int, *, in_line: bool = False, calls: bool = False) -> bool:
        """Read the JSON values or Python calls that begin at `begin`, if they do."""
        text = self._text
        if begin < self._no_value:
            return False
        end = values_end(text, begin, calls=calls)
        if end == 0:
            if calls:
                blank = text.find("\n\n", begin)
                self._no_value = len(text) if blank < 0 else blank
            return False
        if in_line and text[end - 1] not in "]}" and (end < len(text) or "\n" in text[begin:end]):
            self._no_value = end
            return False
        ends_line = _AFTER_VALUE.match(text, end) or self._is_special(end)
        if not ends_line and (in_line or not (calls or _KEYED.match(text, begin))):
            return False
        self._prose(begin)
        self.block(Region.JSON, end)
        return True

    def _fence(self, opening: re.Match[str]) -> None:
        end, after = self._end_of_fence(opening)
        content, tag = opening.end(), fence_tag(opening["info"])
        is_json = tag in _JSON_TAGS or (not tag and self._holds_values(content, end))
        region, language = Region.JSON if is_json else Region.CODE, language_of(tag)
        self._add(self.at, region, boundary=True, language=language)
        self._had_block = True
        line = self._text[self._text.rfind("\n", 0, content - 1) + 1 : content]
        indentation = " " * (len(line) - len(line.lstrip(" ")))
        if tag in _DIFF_TAGS:
            self._changed_lines(content, end, after, language, indentation)
        elif not is_json and (match := _FENCED_DIFF.search(self._text, content - 1, end)):
            self._changed_lines(match.start() + 1, end, after, language, indentation)
        self.at = after

    def _holds_values(self, begin: int, end: int) -> bool:
        """Return whether a fence's content is JSON."""
        content = self._text[begin:end].strip()
        return bool(content) and values_end(content) == len(content)

    def _changed_lines(
        self,
        begin: int,
        end: int,
        after: int,
        language: str = Language.NO_FENCE,
        indentation: str = "",
    ) -> None:
        """Mark the changed lines of a diff up to `end`, in a block of code up to `after`."""
        for match in _changes(indentation).finditer(self._text, begin, end):
            self._add(match.start(), Region.DIFF, boundary=False, language=language)
            if match.end() < after:
                self._add(match.end(), Region.CODE, boundary=False, language=language)

    def _end_of_diff(self, kind: str, begin: int) -> int:
        """Return the end of a patch or diff that begins at `begin`."""
        text = self._text
        if kind != "diff":
            closing = _PATCH_END if kind == "patch" else _REPLACEMENT_END
            match = closing.search(text, begin)
            return len(text) if match is None else match.end()
        at, old, new = begin, 0, 0
        while at < len(text):
            sign = text[at]
            if hunk := _HUNK.match(text, at):
                old, new = int(hunk[1] or 1), int(hunk[2] or 1)
            elif old > 0 or new > 0:
                if sign not in "-+ \n\\":
                    break
                old -= sign in "- \n"
                new -= sign in "+ \n"
            elif not _DIFF_LINE.match(text, at):
                break
            at = text.find("\n", at) + 1 or len(text)
        return at

    def _end_of_fence(self, opening: re.Match[str]) -> tuple[int, int]:
        """Return the end of a fence's content and of its closing line: that of the text if it is
        unclosed, the token that opens an enclosure if that comes first."""
        text, fence = self._text, opening["fence"]
        nests = fence_tag(opening["info"]) in _NESTING_TAGS
        lines = re.compile(rf"\n[ \t>]*{fence[0]}{{{len(fence)},}}([^`\n]*)(?=\n|\Z)")
        depth, unclosed = 1, not nests and fence.startswith(self._unclosed)
        for match in () if unclosed else lines.finditer(text, opening.end() - 1):
            depth += (1 if nests else 0) if match[1].strip() else -1
            if depth == 0:
                end, after = match.start() + 1, min(match.end() + 1, len(text))
                break
        else:
            if not nests and not unclosed:
                self._unclosed += (fence,)
            paragraph = None if nests else _PARAGRAPH.search(text, opening.end() - 1)
            end = after = paragraph.end() if paragraph else len(text)
        for begin in self._special[bisect_left(self._special, opening.end()) :]:
            if begin >= end:
                break
            mark = self._marks.anywhere.match(text, begin)
            opens = mark and mark.end() > begin and _row(mark).region != Region.PROSE
            if mark and opens and (end == after or "|" in mark[0] or "｜" in mark[0]):
                return begin, begin
        return end, after

    def _prose(self, end: int) -> None:
        begin, self.at = self.at, end
        if begin == end:
            return
        self._add(begin, Region.PROSE, boundary=self._had_block)
        for match in _IN_PROSE.finditer(self._text, begin, end):
            region = Region.MARKUP if match["markup"] else Region.NUMBER
            self._add(match.start(), region, boundary=False)
            if match.end() < end:
                self._add(match.end(), Region.PROSE, boundary=False)

    def _add(
        self, start: int, region: str, *, boundary: bool, language: str = Language.NO_FENCE
    ) -> None:
        """Add a region; one that begins where the last one does replaces it."""
        if self.regions and self.regions[-1].start == start:
            boundary |= self.regions.pop().boundary
        if self.regions and self.regions[-1].region == region and not boundary:
            return
        self.regions.append(TextRegion(start, region, boundary, language))


def _with_special(
    regions: Sequence[TextRegion], special: Sequence[Span], length: int
) -> list[TextRegion]:
    """Return the regions with each special token as a piece of the template."""
    if not special:
        return list(regions)
    first = bisect_right(regions, special[0][0], key=lambda region: region.start) - 1
    cut = list(regions[:first])
    tokens = iter((*special, (length, length)))
    begin, end = next(tokens)
    for at, region in enumerate(regions[first:], first):
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


class TokenTexts:
    """Texts of a tokenizer's tokens; each id is decoded once."""

    def __init__(self, tokenizer: Any, marks: ParserPatterns | None = None) -> None:
        """`tokenizer`: has `decode`, `convert_ids_to_tokens` and `all_special_ids`, as tokenizers
        of transformers and vLLM have, and may have `added_tokens_decoder`. `marks`: those of the
        engine's parsers; None: of all that need no name."""
        self.marks = marks or marks_of()
        self._tokenizer = tokenizer
        self._special = frozenset(_special_ids(tokenizer, self.marks))
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
        """Return whether the token is special, or a mark that is one token."""
        return token in self._special

    def _decoded(self, token: int) -> str:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        piece = self._tokenizer.convert_ids_to_tokens([token])[0]
        if isinstance(piece, str) and piece.startswith(_SPACE) and not text.startswith(" "):
            return f" {text}"
        return text


def _special_ids(tokenizer: Any, marks: ParserPatterns) -> Iterator[int]:
    yield from map(int, tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    for token, text in added.items():
        if getattr(text, "special", False) or marks.is_mark(str(text)):
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
            hash_sums = words[place : place + len(hashes)] * weights[place, 0]
            hashes += (hash_sums ^ (hash_sums >> np.uint64(29))) * weights[place, 1]
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
        marks=texts.marks,
    )
    places = np.searchsorted(ends, [region.start for region in regions], side="right").tolist()
    # Of several regions that begin in one token, the last is that of most of what follows.
    last = dict(zip(places, regions, strict=True))
    boundaries = {at for at, region in zip(places, regions, strict=True) if region.boundary}
    padded = np.concatenate([[False], copied_tokens(prompt, answer), [False]])
    return AnswerRegions(
        starts=list(last),
        codes=[Region.ALL.index(region.region) for region in last.values()],
        languages=[Language.ALL.index(region.language) for region in last.values()],
        boundaries=sorted(boundaries),
        copies=[int(place) for place in np.flatnonzero(padded[1:] != padded[:-1])],
    )


def _left_open(texts: TokenTexts, prompt: Sequence[int]) -> Enclosure | None:
    return texts.marks.left_open("".join(texts.of(prompt[-PROMPT_TAIL:])))


def _special(texts: TokenTexts, answer: Sequence[int], ends: Sequence[int]) -> list[Span]:
    return [
        (ends[at - 1] if at else 0, ends[at])
        for at, token in enumerate(answer)
        if texts.is_special(token)
    ]
