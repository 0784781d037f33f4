"""A server is reached by its URL and a key, of which neither secret is shown."""

from __future__ import annotations

import pytest

from driftscope.errors import UsageError
from driftscope.workloads.client.server import Access


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000"),
        ("h:8000", "http://h:8000/v1", "http://h:8000"),
        ("https://h/v1/", "https://h/v1", "https://h"),
        ("https://h/api/v1", "https://h/api/v1", "https://h/api"),
        ("http://h/other", "http://h/other", "http://h/other"),
        ("me:s3cret@h:8000", "http://h:8000/v1", "http://h:8000"),
    ],
)
def test_where_it_is(url: str, base: str, root: str) -> None:
    access = Access.to(url)
    assert (access.base, access.root) == (base, root)
    assert "s3cret" not in repr(access)


def test_what_is_taken_out_of_a_servers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    access = Access.to("http://me:s3cret@h:8000")
    assert access.secrets == ("s3cret", "bWU6czNjcmV0", "sk-0123456789")
    assert access.recorded("no: sk-0123456789, s3cret \x1b") == "no: ***, *** \x1b"
    assert access.printable("no: sk-0123456789, s3cret \x1b") == r"no: ***, *** \x1b"
    assert "sk-" not in repr(access)


def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="not a server's URL") as caught:
        Access.to("http://me:s3cret@")
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\xe9")
    with pytest.raises(UsageError, match="characters that no HTTP header can carry") as caught:
        Access.to("http://h")
    assert "sk-" not in str(caught.value)


def test_a_host_name_that_no_client_takes() -> None:
    with pytest.raises(UsageError, match="not a server's URL") as caught:
        Access.to("http://" + "é" * 200)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
