"""JSON output that every parser can read: it never contains NaN or Infinity.

======================================  ====================================================
`dumps({"a": math.nan})`                '{"a": null}'
`dumps(value, indent=1)`                takes the options of `json.dumps`
`finite([1.0, math.inf])`               [1.0, None]
======================================  ====================================================

Python's own `json.dumps` writes NaN and Infinity as words that are not JSON (RFC 8259, section 6),
which strict parsers reject. All JSON that driftscope writes goes through here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """Return `value` as JSON text, with null for every number that is not finite."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """Return `value` with None for every float that is not finite; handles mappings, lists, tuples
    and plain values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
