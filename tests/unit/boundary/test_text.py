"""Text of unknown origin is safe to print, and keeps no secret."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile.texts import TEXTS

from driftscope.boundary.text import key_from, output_console, redacted, shown
from driftscope.errors import UsageError


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


KEY = "sk-0123456789abcdefghij"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"invalid key: Bearer {KEY}", "invalid key: Bearer ***"),
        (f"key {KEY!r}", "key '***'"),
        (f"{KEY}{KEY} and {KEY}", "*** and ***"),
        (f"key {KEY[:12]}... is wrong", "key ***... is wrong"),
        (f"it ends in {KEY[-9:]}", "it ends in ***"),
        ("Authorization: basic bWU6cHc=", "Authorization: basic ***"),
        ('{"auth":"Bearer another-one"}', '{"auth":"Bearer ***"}'),
        ("nothing to hide, sk-0123", "nothing to hide, sk-0123"),
        ("", ""),
    ],
)
def test_whole_and_in_part(text: str, left: str) -> None:
    assert redacted(text, [KEY]) == left


def test_short_and_quoted_secrets() -> None:
    assert redacted("the word is pw", ["pw"]) == "the word is ***"
    assert redacted("x?key=a%2Fb%20c", ["a/b c"]) == "x?key=***"
    assert redacted("nothing", [""]) == "nothing"


@given(st.text(), st.text(min_size=1), st.text())
def test_no_secret_is_left(before: str, secret: str, after: str) -> None:
    found = redacted(before + secret + after, [secret])
    assert secret not in found or secret in "Bearer *** Basic"


def test_a_key_comes_from_the_environment() -> None:
    assert key_from("MINE", {"MINE": f"{KEY}\n"}) == KEY
    with pytest.raises(
        UsageError, match="MINE: --api-key-env names this environment variable, but it is not set"
    ):
        key_from("MINE", {})
    for value in ("two words", "caf\xe9", "a\x00b"):
        with pytest.raises(UsageError) as caught:
            key_from("MINE", {"MINE": value})
        assert value not in str(caught.value)


@pytest.mark.parametrize("stderr", [False, True])
@pytest.mark.parametrize(("columns", "width"), [(None, 160), ("80", 80), ("wide", 160)])
def test_a_pipe_is_as_wide_as_the_command_likes_unless_its_reader_says(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int, stderr: bool
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert output_console(160, stderr=stderr).width == width
