"""A benchmark's JSON file, written after every piece so that an interrupted run can resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance


class ResultsFile:
    """Facts by name, with their provenance.

    `complete` means that nothing is left to run, `ok` whether the results are as required (None if
    nothing is judged), `verdict` is the result in one line.
    """

    def __init__(self, path: Path | None, device: str, *, again: bool = False) -> None:
        """Without a path nothing is kept. `again`: existing content is discarded.

        Raises SystemExit for a file of another device.
        """
        self._path = path
        self._device = device
        kept = {} if again else read(path)
        if kept.get("device", device) != device:
            raise SystemExit(f"{path} is of device {kept['device']}: use another file, or --again")
        self.facts: dict[str, Any] = kept

    def write(
        self, *, complete: bool = False, ok: bool | None = None, verdict: str = "", **facts: Any
    ) -> None:
        """Write the file atomically."""
        self.facts = {
            **provenance(),
            "device": self._device,
            "complete": complete,
            "ok": ok,
            "verdict": verdict,
            **facts,
        }
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.facts, indent=1, default=str) + "\n")
            partial.replace(self._path)


def read(path: Path | None) -> dict[str, Any]:
    """Return the content of a file; {} if there is none."""
    if path is None or not path.is_file():
        return {}
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
