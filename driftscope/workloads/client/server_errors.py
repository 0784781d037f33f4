"""Extract the error text from a server's response, whatever its format."""

from __future__ import annotations

from typing import Any

import orjson

_NAMES = ("error", "message", "detail")
"""Fields that hold the error text; FastAPI uses `detail`."""


def words_of(content: bytes) -> str:
    """Return the server's error text from a response body, which may be JSON or plain text."""
    try:
        body: Any = orjson.loads(content)
    except ValueError:
        body = content.decode(errors="replace")
    return words_in(body)


def words_in(value: Any) -> str:
    """Return the error text in a JSON value, on one line."""
    for name in _NAMES:
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except TypeError:  # nested too deeply to serialise
            value = "an error without a message"
    return " ".join(value.split())
