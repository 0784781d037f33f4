"""Server-sent events as OpenAI-compatible servers stream them: bytes in, JSON objects out.

Own code, because the time of a piece is that of the bytes that completed it, and a client that
builds a model object for each piece costs more than the sending.
"""

from __future__ import annotations

from typing import Any

import orjson

DONE = b"[DONE]"
_DATA = b"data:"
MAX_EVENT_BYTES = 16 << 20
"""An event that never ends must not fill the memory."""


class BrokenStreamError(Exception):
    """What came is no stream of JSON events."""


class Events:
    """Splits a stream; `done` after its last event, `open` while an event is unfinished."""

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        self.done = False

    @property
    def open(self) -> bool:
        """Whether bytes of an unfinished event have come."""
        return bool(self._rest.strip())

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that `piece` completes; raises BrokenStreamError."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenStreamError(f"an event longer than {MAX_EVENT_BYTES} bytes")
        found = []
        for line in lines:
            if line.startswith(_DATA):  # no comment, event name or empty line between events
                data = line[len(_DATA) :].strip()
                if data == DONE:
                    self.done = True
                elif data:
                    found.append(_object(data))
        return found


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise BrokenStreamError(f"an event that is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise BrokenStreamError("an event that is no JSON object")
    return value
