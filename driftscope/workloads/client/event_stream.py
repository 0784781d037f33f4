"""Parse server-sent events of OpenAI-compatible servers: bytes in, JSON objects out.

This is own code for two reasons. The arrival time of a piece is that of the bytes that completed
it, and a client that builds a model object for each piece costs more than sending the requests.
"""

from __future__ import annotations

from typing import Any

import orjson

from driftscope.boundary.bounds import MAX_ANSWER_BYTES, MAX_ANSWER_EVENTS

DONE = b"[DONE]"
_DATA = b"data:"
MAX_EVENT_BYTES = 16 << 20
"""Limit of one event, so that an event that never ends does not fill the memory."""


class BrokenStreamError(Exception):
    """Raised when the data is not a stream of JSON events."""


class Events:
    """Splits a stream into events; `done` after its last event, `open` while an event is
    unfinished."""

    __slots__ = ("_bytes", "_count", "_rest", "_rest_bytes", "done")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Pieces of an unfinished line, joined once it ends."""
        self._rest_bytes = self._bytes = self._count = 0
        self.done = False

    @property
    def open(self) -> bool:
        """Whether bytes of an unfinished event have arrived."""
        return any(piece.strip() for piece in self._rest)

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Return the events that `piece` completes; raises BrokenStreamError."""
        self._bytes += len(piece)
        if self._bytes > MAX_ANSWER_BYTES:
            raise BrokenStreamError(f"a stream of more than {MAX_ANSWER_BYTES:,} bytes")
        lines = self._lines(piece)
        events = []
        for line in lines:
            if line.startswith(_DATA):  # skips comments, event names and empty lines
                data = line[len(_DATA) :].strip()
                if data == DONE:
                    self.done = True
                elif data:
                    events.append(_object(data))
        self._count += len(events)
        if self._count > MAX_ANSWER_EVENTS:
            raise BrokenStreamError(f"more than {MAX_ANSWER_EVENTS:,} events")
        return events

    def _lines(self, piece: bytes) -> list[bytes]:
        """Return the lines that `piece` completes."""
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        lines = []
        if b"\n" in piece:
            lines = b"".join(self._rest).split(b"\n")
            self._rest = [lines.pop()]
            self._rest_bytes = len(self._rest[0])
        if self._rest_bytes > MAX_EVENT_BYTES:
            raise BrokenStreamError(f"an event longer than {MAX_EVENT_BYTES} bytes")
        return lines


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise BrokenStreamError(f"an event that is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenStreamError("an event that is not a JSON object")
    return value
