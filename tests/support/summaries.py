"""Compare summaries of one run that were made in two ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pytest

from driftscope.analysis.summary.run_summary import RunSummary


def assert_same(ours: RunSummary, theirs: RunSummary, rel: float) -> None:
    """Assert that every figure is equal, and every float within `rel`."""
    for field in fields(RunSummary):
        a, b = (list(_leaves(getattr(run, field.name), field.name)) for run in (ours, theirs))
        assert [path for path, _ in a] == [path for path, _ in b]
        for (path, mine), (_, other) in zip(a, b, strict=True):
            if isinstance(mine, float) and isinstance(other, float):
                assert mine == pytest.approx(other, rel=rel, abs=1e-12, nan_ok=True), path
            else:
                assert mine == other, path


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from _leaves(value[name], f"{path}.{name}")
    elif isinstance(value, np.ndarray):
        yield from _leaves(value.tolist(), path)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}.{at}")
    else:
        yield path, value.item() if isinstance(value, np.generic) else value
