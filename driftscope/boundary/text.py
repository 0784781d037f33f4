r"""Text of unknown origin made safe to print, without secrets, on a console of the right width; and
JSON that every parser can read.

====================================================  ==========================================
`shown("a\x1b[2Jb")`                                  `a\x1b[2Jb` in seven-bit characters
`shown("\u202etxt.exe")`                              `\u202etxt.exe`, in reading order
`redacted("invalid key: Bearer sk-abc", ["sk-abc"])`  "invalid key: Bearer ***"
`redacted("Bearer what-a-server-made-up", [])`        "Bearer ***"
`key_from("MY_KEY", environ)`                         the variable's value
`dumps({"a": math.nan})`                              '{"a": null}'
====================================================  ==========================================

Control characters act on a terminal, bidirectional marks reorder the text, line separators fake
lines, characters without a width make two texts look alike, and a lone surrogate cannot be encoded
at all. Each becomes a visible escape. Joiners stay: emoji and some scripts need them.

Python's own `json.dumps` writes NaN and Infinity as words that are not JSON (RFC 8259, section 6),
which strict parsers reject. All JSON that driftscope writes goes through `dumps`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from driftscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with NUL and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks
    "\u2028\u2029"  # line and paragraph separators
    "\u00ad\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible, of no width
    "\ud800-\udfff"  # lone surrogates: Python's str holds no pairs
    "]"
)


def shown(text: str) -> str:
    """Return `text` with every unsafe character as a visible escape, on one line."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


MARK = "***"
"""Text that replaces a secret."""
_PART = 8
"""Number of consecutive characters of a secret that count as a part of it and not as chance."""
_CREDENTIALS = re.compile(r"\b(Bearer|Basic)\s+[^\s\"',;)\]}]+", re.IGNORECASE)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with MARK in place of each secret, of each part of a secret that is _PART
    characters or longer, and of what follows the words Bearer and Basic."""
    hidden = bytearray(len(text))
    for secret in secrets:
        for form in {secret, quote(secret, safe="")}:
            for part in _pieces_of_secret(form):
                at = text.find(part)
                while at >= 0:
                    hidden[at : at + len(part)] = b"\x01" * len(part)
                    at = text.find(part, at + 1)
    return _CREDENTIALS.sub(rf"\1 {MARK}", _replaced(text, hidden))


def key_from(name: str, environ: Mapping[str, str]) -> str:
    """Return the key in the environment variable `name`; raises UsageError if it is not set or no
    header can carry it."""
    key = environ.get(name, "").strip()
    if not key:
        raise UsageError(
            f"{name}: --api-key-env names this environment variable, but it is not set"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{name}: this environment variable has characters that no HTTP header can carry"
        )
    return key


def _pieces_of_secret(secret: str) -> set[str]:
    if len(secret) <= _PART:
        return {secret} - {""}
    return {secret[at : at + _PART] for at in range(len(secret) - _PART + 1)}


def _replaced(text: str, hidden: bytearray) -> str:
    out, at = [], 0
    for run in re.finditer(rb"\x01+", hidden):
        out += [text[at : run.start()], MARK]
        at = run.end()
    return "".join([*out, text[at:]])


_TABLE = 80
"""Columns for which tables are made."""


def output_console(width: int, *, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or as COLUMNS says, otherwise `width` columns.

    It cuts no word of a table, such as a number: a terminal that is too narrow breaks the lines.
    """
    from rich.console import Console
    from rich.table import Table

    class Uncut(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Any]:
            options = options or self.options
            if isinstance(renderable, Table):
                natural = self.measure(renderable, options=options.update(max_width=_TABLE)).maximum
                options = options.update(max_width=max(natural, options.max_width))
            yield from super().render(renderable, options)

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False, **options})

    console = Uncut(stderr=stderr, highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Uncut(stderr=stderr, highlight=False, width=width)


def dumps(value: Any, **options: Any) -> str:
    """Return `value` as JSON text, with null for every number that is not finite."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """Return `value` with None for every float that is not finite; handles mappings, lists, tuples
    and plain values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
