"""`probe` asks a server that is not trusted: one line, in time, and no key in what it prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from support.hostile.server import CONTROL, STATUS, Asked, Peer, Server, hostile_server

from driftscope.boundary.http_peer import Limits
from driftscope.errors import ControlError, UsageError
from driftscope.trace.control import Change
from driftscope.trace.status import Status
from driftscope_probes import control
from driftscope_probes.control import processes_in, reach

pytestmark = pytest.mark.process

KEY = "sk-0123456789abcdef"


def _echo(peer: Peer, asked: Asked) -> None:
    peer.answer('{"results": [{"error": "no: ' + asked.headers.get("authorization", "") + '"}]}')


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server(echo=_echo) as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LIMITS", Limits(seconds=1.0, octets=control.LIMITS.octets))


@pytest.mark.parametrize("behaviour", [*sorted(CONTROL), "redirect"])
def test_one_line_in_time(server: Server, behaviour: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ControlError) as caught:
        reach(server.url(behaviour)).change(Change(every=4))
    assert time.monotonic() - begun < 2.5
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    assert server.elsewhere is not None and server.elsewhere.asked == []


def test_a_key_from_the_environment_is_sent_and_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", KEY)
    with pytest.raises(ControlError, match=r"no: Bearer \*\*\*") as caught:
        reach(server.url("echo"), api_key_env="MINE").status()
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)
    monkeypatch.setenv(control.API_KEY, KEY)
    with pytest.raises(ControlError):
        reach(server.url("echo")).status()
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"
    with pytest.raises(
        UsageError, match="ABSENT: --api-key-env names this environment variable, but it is not set"
    ):
        reach(server.url("echo"), api_key_env="ABSENT")


def test_a_password_is_not_shown(server: Server) -> None:
    for url in (server.url("echo", user="me:s3cret-word"), "http://me:s3cret-word@h:port/"):
        with pytest.raises(ControlError) as caught:
            reach(url).status()
        assert "s3cret" not in str(caught.value) and "bWU6" not in str(caught.value)


def test_what_a_worker_says_is_taken_as_it_is() -> None:
    import json

    status = Status(
        source="worker0-1",
        closed=False,
        flushed_s=1.5,
        rows={"draft": 2},
        rate=0.5,
        control={"every": None, "budget": 0.01, "per_head": True, "labels": ["a"], "revision": 3},
    )
    worker = {"run": "/runs/a", **asdict(status)}
    content = json.dumps({"results": [None, worker, {**worker, "new": [], "newer": 1.0}]})
    assert processes_in(content.encode()) == [worker, {**worker, "new": [], "newer": 1.0}]
    assert processes_in(json.dumps({"results": [STATUS]}).encode()) == [STATUS]
