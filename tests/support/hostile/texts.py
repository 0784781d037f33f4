"""Names and texts that control a terminal, forge lines, or are no path as they are written."""

from __future__ import annotations

TEXTS = {
    "clear-screen": "a\x1b[2Jb",
    "title": "a\x1b]0;PWN\x07b",
    "link": "a\x1b]8;;http://evil.example\x1b\\b\x1b]8;;\x1b\\",
    "colour": "a\x1b[31mb",
    "cursor-up": "a\x1b[1A\x1b[2Kb",
    "c1-csi": "a\x9b2Jb",
    "nul": "a\x00b",
    "bell": "a\x07b",
    "backspace": "abc\x08\x08\x08xyz",
    "carriage-return": "bad\rgood",
    "newline": "one\ndriftscope: error: forged",
    "delete": "a\x7fb",
    "override": "a\u202eb",
    "isolate": "a\u2066b\u2069",
    "marks": "a\u200e\u200f\u061cb",
    "line-separator": "a\u2028b\u2029c",
    "surrogate": "a\ud800b",
    "all-at-once": "\x1b[2J\x1b]0;PWN\x07\u202e\x00\ud800\x9b",
}
