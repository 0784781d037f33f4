"""Redaction of keys and passwords in everything that is printed or recorded.

====================================================  ==========================
`redacted("invalid key: Bearer sk-abc", ["sk-abc"])`   "invalid key: Bearer ***"
`redacted("Bearer what-a-server-made-up", [])`         "Bearer ***"
`key_from("MY_KEY", environ)`                          the variable's value
====================================================  ==========================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from driftscope.errors import UsageError

MARK = "***"
"""Text that replaces a secret."""
_PART = 8
"""Number of consecutive characters of a secret that count as a part of it and not as chance."""
_CREDENTIALS = re.compile(r"\b(Bearer|Basic)\s+[^\s\"',;)\]}]+", re.IGNORECASE)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return `text` with MARK in place of each secret, of each part of a secret that is _PART
    characters or longer, and of what follows the words Bearer and Basic."""
    hidden = bytearray(len(text))
    for secret in secrets:
        for form in {secret, quote(secret, safe="")}:
            for part in _parts(form):
                _hide(text, part, hidden)
    return _CREDENTIALS.sub(rf"\1 {MARK}", _replaced(text, hidden))


def key_from(name: str, environ: Mapping[str, str]) -> str:
    """Return the key in the environment variable `name`; raises UsageError if it is not set or no
    header can carry it."""
    key = environ.get(name, "").strip()
    if not key:
        raise UsageError(
            f"{name}: --api-key-env names this environment variable, but it is not set"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{name}: this environment variable has characters that no HTTP header can carry"
        )
    return key


def _parts(secret: str) -> set[str]:
    if len(secret) <= _PART:
        return {secret} - {""}
    return {secret[at : at + _PART] for at in range(len(secret) - _PART + 1)}


def _hide(text: str, part: str, hidden: bytearray) -> None:
    at = text.find(part)
    while at >= 0:
        hidden[at : at + len(part)] = b"\x01" * len(part)
        at = text.find(part, at + 1)


def _replaced(text: str, hidden: bytearray) -> str:
    out, at = [], 0
    for run in re.finditer(rb"\x01+", hidden):
        out += [text[at : run.start()], MARK]
        at = run.end()
    return "".join([*out, text[at:]])
