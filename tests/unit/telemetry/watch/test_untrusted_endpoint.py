"""`watch URL` against endpoints that do harm: one line, in time, in little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from support.hostile.server import METRICS, Server, hostile_server

from driftscope.boundary.http_peer import Limits
from driftscope.errors import TelemetryError
from driftscope.telemetry.watch import followed_engine
from driftscope.telemetry.watch.engine_view import view

pytestmark = pytest.mark.process

TAME = {"elsewhere", "no-labels", "bucket-le-word"}
"""Odd, and yet figures."""
SECONDS = 1.0
ROOM_KB = 300 << 10
"""Most memory that reading a page of the largest size may add, in KiB."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hostile_server() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        followed_engine, "LIMITS", Limits(seconds=SECONDS, octets=followed_engine.LIMITS.octets)
    )


@pytest.mark.parametrize("behaviour", sorted(METRICS.keys() - TAME))
def test_one_line_in_time(server: Server, behaviour: str) -> None:
    begun, before_kb = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TelemetryError) as caught:
        view(followed_engine.FollowedEndpoint(server.url(behaviour)).look())
    assert time.monotonic() - begun < SECONDS + 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < ROOM_KB
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500, message


@pytest.mark.parametrize("behaviour", sorted(TAME))
def test_odd_figures_are_figures(server: Server, behaviour: str) -> None:
    seen = view(followed_engine.FollowedEndpoint(server.url(behaviour)).look())
    assert seen.rounds == 10 and seen.k == 0
    assert set(seen.undrafted) <= {"unknown"}


def test_a_password_is_sent_and_shown_nowhere(server: Server) -> None:
    url = server.url("elsewhere", user="me:s3cret-word")
    followed_engine.FollowedEndpoint(url)
    assert server.asked[-1].headers["authorization"] == "Basic bWU6czNjcmV0LXdvcmQ="
    for behaviour in ("silent", "raw-reason", "k-nan", "hangs-up"):
        with pytest.raises(TelemetryError) as caught:
            followed_engine.FollowedEndpoint(server.url(behaviour, user="me:s3cret-word")).look()
        assert "s3cret" not in str(caught.value) and "me:" not in str(caught.value)


def test_nobody_is_sent_elsewhere(server: Server) -> None:
    assert server.elsewhere is not None
    with pytest.raises(TelemetryError, match=r"redirects \(HTTP 307\) to http://127"):
        followed_engine.FollowedEndpoint(server.url("redirect"))
    assert server.elsewhere.asked == []
