"""Text of unknown origin reaches a terminal as visible characters only."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile.texts import TEXTS

from driftscope.boundary.terminal_text import shown


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_text_steers_a_terminal(text: str) -> None:
    found = shown(text)
    found.encode("utf-8")
    assert not [sign for sign in found if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [
        sign
        for sign in found
        if unicodedata.bidirectional(sign)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    ]


def test_what_was_there_can_be_read() -> None:
    assert shown("a\x1b[2J\x00\x9b\x7f") == r"a\x1b[2J\x00\x9b\x7f"
    assert shown("\u202efdp.exe\ud800\u061c\u200f") == r"\u202efdp.exe\ud800\u061c\u200f"


def test_what_cannot_be_seen_is_shown_and_joiners_stay() -> None:
    assert shown("run\u200b\ufeff\xad\U000e0041") == r"run\u200b\ufeff\xad\U000e0041"
    assert shown("👩\u200d🔬 می\u200cخواهم") == "👩\u200d🔬 می\u200cخواهم"


@given(st.text())
def test_it_changes_nothing_twice(text: str) -> None:
    assert shown(shown(text)) == shown(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"])))
def test_ordinary_text_stays(text: str) -> None:
    assert shown(text) == text
