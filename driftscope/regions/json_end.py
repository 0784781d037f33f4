"""The end of a JSON value with which a text begins, which may be cut short."""

from __future__ import annotations

import re

_START = re.compile(r"\s*(?:\{\s*(?:\"|\}|\Z)|\[\s*(?:[\[{\"\]\d-]|\Z))")
_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|[\[{]|[\]}]", re.DOTALL)


def json_end(text: str) -> int:
    """Return the index after the JSON object or array with which the text begins; 0 if it begins
    with none. A value that is cut short ends with the text."""
    if not _START.match(text):
        return 0
    depth = 0
    for match in _TOKEN.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)
