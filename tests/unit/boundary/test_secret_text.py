"""A key is in no text that is printed or recorded, whole or in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.boundary.secret_text import key_from, redacted
from driftscope.errors import UsageError

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
