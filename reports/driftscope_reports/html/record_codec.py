"""Encode records as plain JSON values and decode them by their type hints.

JSON has no infinities: such floats are written as strings. Keys of a newer version are ignored, and
a missing key takes its default.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import numpy as np

from driftscope.analysis.statistics.intervals.interval import Interval

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return dicts, lists, strings and finite numbers; a field that holds its default is
    omitted."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = {f.name: getattr(value, f.name) for f in fields(value)}
        usual = {f.name: f.default for f in fields(value) if f.default is not MISSING}
        return {
            name: to_plain(item)
            for name, item in kept.items()
            if not (name in usual and _alike(usual[name], item))
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    return value


def from_plain(kind: type[T], value: Any) -> T:
    """Return the record of class `kind`; raises TypeError, ValueError or KeyError for anything
    else."""
    made: T = _read(kind, value, kind.__name__)
    return made


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(inner, value, where)
    if origin is np.ndarray:
        return _array(inner, _is(list, value, where), where)
    if origin is tuple:
        return _tuple(inner, _is(list, value, where), where)
    if origin in (dict, Mapping):
        items = _is(dict, value, where).items()
        return {key: _read(inner[1], item, f"{where}.{key}") for key, item in items}
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint, _is(dict, value, where), where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _plain(hint, value, where)


def _record(kind: type[Any], value: Mapping[str, Any], where: str) -> Any:
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    return kind(
        **{
            name: _read(hints[name], item, f"{where}.{name}")
            for name, item in value.items()
            if name in hints
        }
    )


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    errors = []
    for hint in sorted(hints, key=lambda hint: hint is not type(value)):  # 4 stays an int
        if hint is type(None):
            continue
        try:
            return _supported(_read(hint, value, where))
        except (TypeError, ValueError, KeyError) as error:
            errors.append(error)
    raise errors[-1] if errors else TypeError(f"{where} is {value!r}")


def _supported(record: Any) -> Any:
    """Return the record, with intervals checked: a report of an older driftscope may hold intervals
    whose ends are not finite."""
    return (
        Interval.of(record.low, record.high, record.clusters)
        if isinstance(record, Interval)
        else record
    )


def _tuple(inner: tuple[Any, ...], value: Sequence[Any], where: str) -> tuple[Any, ...]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if len(inner) != len(value):
        raise ValueError(f"{where} has {len(value)} elements, not {len(inner)}")
    return tuple(
        _read(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(zip(inner, value, strict=True))
    )


def _array(inner: tuple[Any, ...], value: Sequence[Any], where: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value, dtype=typing.get_args(inner[1])[0])
    except OverflowError as error:
        raise ValueError(f"{where} has a number that is too large") from error


def _plain(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, str):
        return float(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{where} is {type(value).__name__}, not {getattr(hint, '__name__', hint)}")
    return value


def _is(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


def _alike(usual: Any, item: Any) -> bool:
    return type(usual) is type(item) and bool(usual == item)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)
