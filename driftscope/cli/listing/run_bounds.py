"""Ages and sizes as users write them."""

from __future__ import annotations

import re

from driftscope.analysis.query.row_filters import span_s
from driftscope.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_DIGITS = 15
"""Longest number that is accepted, in characters."""


def seconds_of(text: str) -> float:
    """Return the seconds of a span such as "30d"; raises UsageError."""
    if (seconds := span_s(text)) is None:
        raise UsageError(f"--older-than {text!r}: give a span such as 12h or 30d")
    return seconds


def octets_of(text: str) -> int:
    """Return the bytes of a size such as "20GB" or "500M"; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _DIGITS:
        raise UsageError(f"--max-total {text!r}: give a size such as 500MB or 20GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])
