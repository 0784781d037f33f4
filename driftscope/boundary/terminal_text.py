r"""Escaping of text of unknown origin, so that it is safe to print.

===========================  ==========================================
`shown("a\x1b[2Jb")`         `a\x1b[2Jb` in seven-bit characters
`shown("\u202etxt.exe")`     `\u202etxt.exe`, in reading order
`shown("héllo 漢字")`         unchanged
===========================  ==========================================

Control characters act on a terminal, bidirectional marks reorder the text, line separators fake
lines, characters without a width make two texts look alike, and a lone surrogate cannot be encoded
at all. Each becomes a visible escape. Joiners stay: emoji and some scripts need them.
"""

from __future__ import annotations

import re

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
