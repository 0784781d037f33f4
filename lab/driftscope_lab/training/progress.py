"""Progress of a training run: one line per report, on stderr and in a file of JSON lines."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


class Progress:
    """Writes progress lines, each with the seconds since the start."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        """`keep`: whether the lines of an earlier run stay."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._start = time.monotonic()
        if not keep:
            path.write_text("", encoding="utf-8")

    def note(self, text: str) -> None:
        """Write a line to stderr only."""
        sys.stderr.write(f"{self._elapsed_s():7.1f} s  {text}\n")
        sys.stderr.flush()

    def step(self, stage: str, step: int, steps: int, **figures: float | list[float]) -> None:
        """Report figures of one step."""
        shown = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        self.note(f"{stage} {step}/{steps}  {shown}")
        record = {"stage": stage, "step": step, "elapsed_s": self._elapsed_s(), **figures}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._start, 1)


def _short(value: float | list[float]) -> str:
    if isinstance(value, list):
        return "[" + " ".join(f"{item:.3f}" for item in value) + "]"
    return f"{value:.3f}"
