"""Folder names that query engines are known to interpret."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from driftscope.analysis.query.record_views import QUERIED, queried

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
