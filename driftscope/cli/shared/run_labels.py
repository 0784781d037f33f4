"""Labels of runs in a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from driftscope.errors import UsageError


def labels_of(runs: Sequence[Path], given: Sequence[str] | None) -> list[str]:
    """Return the given labels, or the directories' names, numbered where they are equal.

    Raises UsageError if labels are given and are not one distinct label per run.
    """
    if not given:
        return _distinct([run.resolve().name or str(run) for run in runs])
    if len(given) != len(runs):
        raise UsageError(
            f"--label: {len(given)} given for {len(runs)} runs; give one for each run, or none"
        )
    if len(set(given)) < len(given):
        raise UsageError("--label: two runs have the same label; give each its own")
    return list(given)


def _distinct(names: Sequence[str]) -> list[str]:
    """Make names distinct: "run", "run" -> "run", "run (2)"."""
    seen: Counter[str] = Counter()
    out: list[str] = []
    for name in names:
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name} ({seen[name]})"
        while label in out:
            seen[name] += 1
            label = f"{name} ({seen[name]})"
        out.append(label)
    return out
