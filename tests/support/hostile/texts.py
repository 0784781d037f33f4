"""Names and texts that control a terminal, forge lines, or are no path as they are written."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from driftscope.analysis.query.record_views import QUERIED, queried

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


COLUMNS = sorted({name for record in QUERIED for name in queried(record).names})
MAX_BYTES = 200
"""Longest name in bytes, below any file system's limit."""


def folder_names() -> SearchStrategy[str]:
    """Generate name=value as in a partitioned data set, patterns, quotes, and any other
    character."""
    partition = st.builds(
        "{}={}".format,
        st.sampled_from([*COLUMNS, "batch", "context", "label", "any"]),
        st.sampled_from(["8", "3", "1", "abc", "", "2026-01-01", "null", "%20"]),
    )
    odd = st.text("ab*?[]{}!^\\'\"`=;:,$%~#@&|<> \t\n.-ü😀", min_size=1, max_size=12)
    anything = st.text(
        st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
    )
    return st.one_of(partition, odd, anything).filter(_is_name)


def _is_name(name: str) -> bool:
    return name not in (".", "..") and len(name.encode()) <= MAX_BYTES
