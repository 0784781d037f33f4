"""Runs that the cost model does not use, and the reason for each."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.cost.advice import Measured, same_models
from driftscope.analysis.number_words import listed
from driftscope.trace.format.manifest import Manifest, Model


def reasons(a: Measured, b: Measured, *, target_only: bool = False) -> str | None:
    """Return why the step times of `b` cannot be pooled with those of `a`; None if they can.

    `target_only`: `b` does not speculate.
    """
    if same_models(a, b, target_only=target_only):
        return None
    mine, theirs = a.manifest, b.manifest
    things = [
        *_models("target", mine.target, theirs.target),
        *([] if target_only else _models("drafter", mine.drafter, theirs.drafter)),
        *_settings(mine, theirs, () if target_only else ("method",)),
    ]
    return f"left out, it has another {listed(things)}"


def _models(name: str, a: Model, b: Model) -> list[str]:
    if a == b:
        return []
    return [f"{name} ({b.name} instead of {a.name})" if a.name != b.name else name]


def _settings(a: Manifest, b: Manifest, more: Sequence[str]) -> list[str]:
    names = {
        "engine": "engine",
        "runner": "runner",
        "mode": "execution mode",
        "tensor_parallel": "tensor parallelism",
        **{name: name for name in more},
    }
    return [
        f"{words} ({getattr(b, name)} instead of {getattr(a, name)})"
        for name, words in names.items()
        if getattr(a, name) != getattr(b, name)
    ]
