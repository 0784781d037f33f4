"""Numbers from untrusted JSON: absent is None, and anything that cannot be right is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.boundary.bounds import MAX_COUNT, MAX_K, MAX_SECONDS

MOST_LENGTH = MAX_K + 1


class BadFigureError(ValueError):
    """A value that no tool writes there; the message says which."""


def number(fields: Mapping[str, Any], name: str, most: float = float(MAX_COUNT)) -> float | None:
    """Return a number from 0 to `most`; None if it is absent, null or NaN."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFigureError(f"{name} is {str(value)[:40]!r}, not a number")
    if isinstance(value, float) and math.isnan(value):
        return None
    if not 0 <= value <= most:
        raise BadFigureError(f"{name} is {value:g}, outside 0 to {most:g}")
    return float(value)


def count(fields: Mapping[str, Any], name: str, most: int = MAX_COUNT) -> int | None:
    """Return a whole number from 0 to `most`; None if it is absent."""
    value = number(fields, name, most)
    if value is None:
        return None
    if value != int(value):
        raise BadFigureError(f"{name} is {value:g}, not a whole number")
    return int(value)


def share(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a number from 0 to 1; None if it is absent."""
    return number(fields, name, 1.0)


def length(fields: Mapping[str, Any], name: str) -> float | None:
    """Return tokens per round, the target's own included; None if it is absent."""
    return number(fields, name, MOST_LENGTH)


def milliseconds(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds from one in milliseconds; None if it is absent."""
    value = number(fields, name, 1000.0 * MAX_SECONDS)
    return None if value is None else value / 1000.0


def objects(fields: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in a list; () if it is absent."""
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadFigureError(f"{name} is no list")
    return tuple(each for each in value if isinstance(each, dict))


def inner(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object; empty if it is absent."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def numbers(value: object, name: str, most: float = float(MAX_COUNT)) -> tuple[float, ...]:
    """Return a list of numbers from 0 to `most`."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_COUNT:
        raise BadFigureError(f"{name} is no list of numbers")
    found = []
    for each in value:
        one = number({name: each}, name, most)
        if one is None:
            raise BadFigureError(f"{name} holds a value that is no number")
        found.append(one)
    return tuple(found)
