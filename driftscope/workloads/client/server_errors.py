"""The words of a server's error, from whatever it sends in their place."""

from __future__ import annotations

from typing import Any

import orjson

_NAMES = ("error", "message", "detail")
"""Where the words are. FastAPI says detail."""


def words_of(content: bytes) -> str:
    """The server's own words in the body of an error, as JSON or as they are."""
    try:
        found: Any = orjson.loads(content)
    except ValueError:
        found = content.decode(errors="replace")
    return words_in(found)


def words_in(value: Any) -> str:
    """The words in a value of JSON, on one line."""
    for name in _NAMES:
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except TypeError:  # nested too deeply for words
            value = "an error without words"
    return " ".join(value.split())
