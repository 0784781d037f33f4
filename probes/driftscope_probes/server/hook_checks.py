"""Checks that the places which the probe hooks are where it knows them."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

from driftscope_probes.engine import HookPoint
from driftscope_probes.server.check import Check


def hook_checks(
    seam: str, hooks: tuple[HookPoint, ...], engine: str, *, optional: bool = False
) -> Iterator[Check]:
    """Yield a check of each hook of a seam; an `optional` seam may be missing."""
    for hook in hooks:
        missing = _missing(lambda h=hook: _resolve(h))  # type: ignore[misc]
        yield Check(
            topic=f"hook {seam}",
            ok=missing is None or (None if optional or hook.optional else False),
            detail=f"{hook.name}: {missing or f'works ({hook.purpose})'}",
            hint=f"this {engine}'s code is organised differently: use a tested version",
        )


def _resolve(hook: HookPoint) -> Any:
    return operator.attrgetter(hook.name)(importlib.import_module(hook.module))


def _missing(look: Callable[[], Any]) -> str | None:
    try:
        look()
    except Exception as error:  # an import may fail in any way
        return f"not found ({type(error).__name__}: {error})"[:160]
    return None
