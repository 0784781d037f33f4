"""JSON that every parser reads: it never holds NaN or Infinity.

======================================  ====================================================
`dumps({"a": math.nan})`                '{"a": null}'
`dumps(value, indent=1)`                options are those of `json.dumps`
`finite([1.0, math.inf])`               [1.0, None]
======================================  ====================================================

Python's own `json.dumps` writes NaN and Infinity as words that are no JSON (RFC 8259, section 6),
which strict parsers reject. All that driftscope writes as JSON goes through here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **options: Any) -> str:
    """`value` as JSON text, with null for a number that is not finite."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """`value`, of mappings, lists, tuples and plain values, with None for floats that are not
    finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
