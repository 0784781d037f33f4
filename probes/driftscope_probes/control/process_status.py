"""Parses and checks the status of a server's worker processes, as received over HTTP.

A worker sends its `driftscope.trace.format.status.Status` as JSON. The server on the port is not
trusted, so every field is checked here for its type and bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from driftscope.boundary.bounds import MAX_COUNT, MAX_ITEMS, MAX_LABEL_CHARS, MAX_TEXT_CHARS
from driftscope.trace.format.control_file import MAX_LABELS

Process = dict[str, Any]
MAX_PROCESSES = 4096
"""Largest number of workers of one server, and of entries in one of their counts."""


class BadStatusError(ValueError):
    """An answer that no worker gives; the message says what is wrong with it."""


def processes_in(content: bytes) -> list[Process]:
    """Return the status of each worker that has a drafter, or {"error": words} in its place.

    Raises BadStatusError.
    """
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadStatusError("no JSON") from error
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) > MAX_PROCESSES:
        raise BadStatusError("no list of results")
    statuses = [_process(one) for one in results if one is not None]
    if not statuses:
        raise BadStatusError("no worker of it has a drafter")
    return statuses


def _process(value: Any) -> Process:
    if not isinstance(value, dict):
        raise BadStatusError("a result that is no object")
    if "error" in value:
        if not _text(value["error"]):
            raise BadStatusError("error: no text")
        return {"error": value["error"]}
    if missing := [name for name in ("source", "closed") if name not in value]:
        raise BadStatusError(f"no {missing[0]}")
    process: Process = {"rows": {}, "dropped": {}, "errors": {}, **value}
    for name, one in process.items():
        if not _FIELDS.get(name, _plain)(one):
            raise BadStatusError(f"{name[:MAX_LABEL_CHARS]}: not what it should be")
    return process


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_CHARS


def _name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL_CHARS


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_COUNT and math.isfinite(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _counts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_PROCESSES
        and all(type(n) is int and 0 <= n <= MAX_COUNT for n in value.values())
        and all(map(_name, value))
    )


def _names(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_ITEMS
        and all(_name(key) and _name(each) for key, each in value.items())
    )


def _labels(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LABELS and all(map(_name, value))


def _control(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _CONTROL.get(name, _plain)(one) for name, one in value.items()
    )


def _plain(value: Any) -> bool:
    """Accept a field that a newer driftscope adds if it is a single value or a few names."""
    return value is None or _text(value) or _truth(value) or _number(value) or _labels(value)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_CONTROL: Mapping[str, Callable[[Any], bool]] = {
    "every": _or_none(_number),
    "budget": _or_none(_number),
    "per_head": _or_none(_truth),
    "labels": _or_none(_labels),
}
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "source": _name,
    "closed": _truth,
    "rows": _counts,
    "dropped": _counts,
    "errors": _counts,
    "first_error": _or_none(_text),
    "reason": _or_none(_text),
    "probe_s": _number,
    "writer_s": _number,
    "step_s": _number,
    "down": _truth,
    "rate": _or_none(_number),
    "overhead": _or_none(_number),
    "recording": _or_none(_truth),
    "answered": _truth,
    "control": _or_none(_control),
    "digests": _names,
}
