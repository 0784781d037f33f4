"""An endpoint that cannot be stopped does not keep the thread that writes the trace."""

from __future__ import annotations

import socketserver
import threading
import time

import pytest

from driftscope.telemetry.collect.tally import Key, Point
from driftscope.telemetry.export import scrape


class Nothing:
    """A source without figures."""

    def snapshot(self) -> dict[Key, Point]:
        return {}

    def identity(self) -> None:
        return None


def test_an_endpoint_that_does_not_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    over, stopped = threading.Event(), socketserver.BaseServer.shutdown

    def hanging(server: socketserver.BaseServer) -> None:
        over.wait(30)
        stopped(server)

    monkeypatch.setattr(socketserver.BaseServer, "shutdown", hanging)
    monkeypatch.setattr(scrape, "STOP_S", 0.1)
    stop = scrape.serve(Nothing(), "127.0.0.1", 0)
    begun = time.monotonic()
    stop()
    waited_s = time.monotonic() - begun
    over.set()
    assert waited_s < 10
