"""A stream of events is bounded in every way in which it can be without an end."""

from __future__ import annotations

import time

import pytest

from driftscope.workloads.client import answer
from driftscope.workloads.client.answer import MAX_EVENT_BYTES, BrokenStreamError, Events


@pytest.mark.parametrize("piece", [b": still here\n", b"\n", b"data: {}\n", b"x"])
def test_its_bytes(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(answer, "MAX_ANSWER_BYTES", 10_000)
    events = Events()
    with pytest.raises(BrokenStreamError, match="a stream of more than 10,000 bytes"):
        for _ in range(10_000 // len(piece) + 1):
            events.feed(piece)


def test_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MAX_ANSWER_EVENTS", 100)
    events = Events()
    assert len(events.feed(b"data: {}\n" * 100)) == 100
    with pytest.raises(BrokenStreamError, match="more than 100 events"):
        events.feed(b"data: {}\n")


def test_an_event_that_comes_in_small_pieces_costs_no_more_than_its_length() -> None:
    events, begun = Events(), time.monotonic()
    with pytest.raises(BrokenStreamError, match="an event longer than"):
        for _ in range(MAX_EVENT_BYTES // 1024 + 1):
            events.feed(b"x" * 1024)
    assert time.monotonic() - begun < 2
