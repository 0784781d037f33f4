"""One request to a server that is not trusted costs bounded time and memory."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.hostile.server import Asked, Peer, Server, hostile_server

from driftscope.boundary.http_peer import Limits, ask
from driftscope.errors import PeerError

pytestmark = pytest.mark.process

LIMITS = Limits(seconds=0.6, octets=100_000)


def _fits(peer: Peer, asked: Asked) -> None:
    peer.answer("x" * LIMITS.octets)


def _does_not_fit(peer: Peer, asked: Asked) -> None:
    peer.answer("x" * (LIMITS.octets + 1))


def _packed(peer: Peer, asked: Asked) -> None:
    peer.answer(gzip.compress(b"a" * LIMITS.octets), headers={"Content-Encoding": "gzip"})


def _moved(peer: Peer, asked: Asked) -> None:
    if asked.path == "/new":
        peer.answer("here")
    else:
        peer.answer("", status="302 Found", headers={"Location": "/moved/new"})


def _echoes(peer: Peer, asked: Asked) -> None:
    peer.send(f"HTTP/1.1 {asked.headers['authorization']}\r\n\r\n".encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server(
        fits=_fits, packed=_packed, moved=_moved, echoes=_echoes, **{"does-not-fit": _does_not_fit}
    ) as made:
        yield made


def test_an_answer(server: Server) -> None:
    found = ask(server.url("well/version"), LIMITS, headers={"X-Mine": "1"})
    assert found.status == 200 and json.loads(found.text()) == {"version": "0.0"}
    assert server.asked[-1].method == "GET" and server.asked[-1].headers["x-mine"] == "1"
    found = ask(server.url("well/nothing"), LIMITS, body=b"{}")
    assert found.status == 404 and server.asked[-1].method == "POST"


@pytest.mark.parametrize("behaviour", ["fits", "packed"])
def test_the_largest_that_fits(server: Server, behaviour: str) -> None:
    assert len(ask(server.url(behaviour), LIMITS).content) == LIMITS.octets


@pytest.mark.parametrize("behaviour", ["does-not-fit", "endless", "gzip-bomb"])
def test_one_that_does_not(server: Server, behaviour: str) -> None:
    with pytest.raises(PeerError, match="the answer is larger than 100,000 bytes"):
        ask(server.url(behaviour), LIMITS)


@pytest.mark.parametrize("behaviour", ["silent", "byte-by-byte", "slow-head", "continues"])
def test_the_deadline_is_of_the_whole_answer(server: Server, behaviour: str) -> None:
    begun = time.monotonic()
    with pytest.raises(PeerError, match=r"no complete answer within 0\.6 s"):
        ask(server.url(behaviour), LIMITS)
    assert 0.5 < time.monotonic() - begun < 1.5
    deadline = time.monotonic() + 5
    while any(each.name == "driftscope-deadline" for each in threading.enumerate()):
        assert time.monotonic() < deadline, "its thread goes on"
        time.sleep(0.01)


def test_the_deadline_is_of_the_name_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(2))
    begun = time.monotonic()
    with pytest.raises(PeerError, match="no complete answer within"):
        ask(server.url("well/version"), LIMITS)
    assert time.monotonic() - begun < 1.5


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("short-body", "cut off"),
        ("short-gzip", "cut off"),
        ("broken-chunks", "cut off"),
        ("hangs-up", "closed connection without response"),
        ("no-http", r"\\x1b\[2J"),
        ("odd-coding", "content encoding"),
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
