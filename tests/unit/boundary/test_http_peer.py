"""One request to a server that is not trusted costs bounded time and memory."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.hostile.server import Asked, Peer, Server, hostile_server, page_of
from support.hostile.texts import TEXTS
from support.waiting import no_hang, until

from driftscope.boundary.http_peer import (
    AnswerLimits,
    BadUrlError,
    Deadline,
    ServerUrl,
    ask,
    public,
    within,
)
from driftscope.errors import PeerError


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


def test_work_within_a_deadline() -> None:
    assert within(Deadline(5), lambda: "done") == "done"
    with pytest.raises(ZeroDivisionError):
        within(Deadline(5), lambda: 1 / 0)
    over = threading.Event()
    with no_hang(), pytest.raises(TimeoutError):
        within(Deadline(0.1), lambda: over.wait(60))
    over.set()


def test_the_time_left() -> None:
    assert 0 < Deadline(60).left_s() <= 60
    deadline = Deadline(0.05)
    time.sleep(0.06)
    with pytest.raises(TimeoutError):
        deadline.left_s()


pytestmark = pytest.mark.process

LIMITS = AnswerLimits(seconds=0.6, octets=100_000)


def _moved(peer: Peer, asked: Asked) -> None:
    if asked.path == "/new":
        peer.answer("here")
    else:
        peer.answer("", status="302 Found", headers={"Location": "/moved/new"})


def _echoes(peer: Peer, asked: Asked) -> None:
    peer.send(f"HTTP/1.1 {asked.headers['authorization']}\r\n\r\n".encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    fits, larger = (page_of("x" * octets) for octets in (LIMITS.octets, LIMITS.octets + 1))
    with hostile_server(fits=fits, larger=larger, moved=_moved, echoes=_echoes) as made:
        yield made


def test_an_answer(server: Server) -> None:
    found = ask(server.url("well/version"), LIMITS, headers={"X-Mine": "1"})
    assert found.status == 200 and json.loads(found.text()) == {"version": "0.0"}
    assert server.asked[-1].method == "GET" and server.asked[-1].headers["x-mine"] == "1"
    found = ask(server.url("well/nothing"), LIMITS, body=b"{}")
    assert found.status == 404 and server.asked[-1].method == "POST"


@pytest.mark.parametrize("behaviour", ["larger", "endless"])
def test_the_size_of_an_answer_is_bounded(server: Server, behaviour: str) -> None:
    assert len(ask(server.url("fits"), LIMITS).content) == LIMITS.octets
    with pytest.raises(PeerError, match="the answer is larger than 100,000 bytes"):
        ask(server.url(behaviour), LIMITS)


@pytest.mark.parametrize("behaviour", ["silent", "byte-by-byte", "slow-head", "continues"])
def test_the_deadline_is_of_the_whole_answer(server: Server, behaviour: str) -> None:
    with no_hang(), pytest.raises(PeerError, match=r"no complete answer within 0\.6 s"):
        ask(server.url(behaviour), LIMITS)
    until(lambda: "driftscope-deadline" not in {thread.name for thread in threading.enumerate()})


def test_the_deadline_is_of_the_name_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    with no_hang(), pytest.raises(PeerError, match="no complete answer within"):
        ask(server.url("well/version"), LIMITS)
    over.set()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("short-body", "cut off"),
        ("broken-chunks", "cut off"),
        ("hangs-up", "closed connection without response"),
        ("no-http", r"\\x1b\[2J"),
        ("odd-coding", "content encoding"),
        ("gzip-bomb", "content encoding 'gzip'"),
        ("many-headers", "more than 100 headers"),
        ("redirect-loop", "redirects more than 3 times"),
    ],
)
def test_what_is_no_answer(server: Server, behaviour: str, words: str) -> None:
    with pytest.raises(PeerError, match=words) as caught:
        ask(server.url(behaviour), LIMITS)
    assert str(caught.value).isprintable() and server.url(behaviour) in str(caught.value)


def test_redirects_stay_where_they_were_sent(server: Server) -> None:
    assert ask(server.url("moved/old"), LIMITS).text() == "here"
    assert server.elsewhere is not None
    for body in (None, b"a prompt"):
        with pytest.raises(PeerError, match="which is not followed"):
            ask(server.url("redirect"), LIMITS, body=body)
    with pytest.raises(PeerError, match="which is not followed"):
        ask(server.url("moved/old"), LIMITS, body=b"a prompt")
    assert server.elsewhere.asked == []


def test_no_secret_is_in_an_error(server: Server) -> None:
    with pytest.raises(PeerError) as caught:
        ask(server.url("echoes", user="me:s3cret-password"), LIMITS)
    assert "***" in str(caught.value) and "s3cret" not in str(caught.value)
    assert "me:" not in str(caught.value)
    with pytest.raises(PeerError) as caught:
        ask(server.url("echoes"), LIMITS, headers={"Authorization": "Bearer sk-0123456789"})
    assert "sk-0123456789" not in str(caught.value)


def test_nobody_there() -> None:
    with pytest.raises(PeerError, match=r"http://127\.0\.0\.1:9: Connection refused"):
        ask("http://me:pw@127.0.0.1:9", LIMITS)
    with pytest.raises(PeerError, match="not an http or https URL"):
        ask("ftp://me:pw@127.0.0.1:9", LIMITS)
