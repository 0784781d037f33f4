"""A URL is split into what may be shown and what may not."""

from __future__ import annotations

import pytest
from support.hostile.texts import TEXTS

from driftscope.boundary.server_url import BadUrlError, ServerUrl, public


@pytest.mark.parametrize(
    ("url", "plain", "origin", "authorization"),
    [
        ("http://h", "http://h", ("http", "h", 80), None),
        ("https://h/v1/", "https://h/v1", ("https", "h", 443), None),
        ("http://me:pw@h:8000/v1", "http://h:8000/v1", ("http", "h", 8000), "Basic bWU6cHc="),
        ("http://me:p%40%2F@h", "http://h", ("http", "h", 80), "Basic bWU6cEAv"),
        ("http://tok@h", "http://h", ("http", "h", 80), "Basic dG9rOg=="),
        ("http://[::1]:9/a?key=pw#x", "http://[::1]:9/a", ("http", "::1", 9), None),
    ],
)
def test_its_parts(
    url: str, plain: str, origin: tuple[str, str, int], authorization: str | None
) -> None:
    found = ServerUrl.parsed(url)
    assert (found.plain, found.origin, found.authorization) == (plain, origin, authorization)
    assert public(url) == plain or public(url) == plain + "/"
    assert not any(secret in found.plain for secret in found.secrets)
    assert bool(found.secrets) == bool(authorization)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:80",
        "ftp://me:s3cret@h",
        "http://",
        "http://me:s3cret@",
        "http://me:s3/cret@h",
        "http://me:s3cret@h:port",
        "http://[s3cret",
        "http://me:s3cret@h/\x1b[2J",
        "http://h\\\\a:80",
        "http://h<b>",
    ],
)
def test_what_is_none(url: str) -> None:
    with pytest.raises(BadUrlError) as caught:
        ServerUrl.parsed(url)
    assert "s3" not in str(caught.value)
    assert "s3cret" not in public(url) or "@" not in url


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_shown_can_be_printed(text: str) -> None:
    assert public(f"http://me:{text}@host/{text}").isprintable()


def test_a_password_with_signs_of_its_own_is_not_shown() -> None:
    for secret in ("a/s3cret", "a@s3cret", "a?s3cret", "a#s3cret", "a//s3cret"):
        assert "s3cret" not in public(f"http://me:{secret}@host:8000/v1")
        assert "s3cret" not in public(f"me:{secret}@host:8000")
