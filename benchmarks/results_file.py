"""A benchmark's JSON: written after every piece, so that what was interrupted can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance


class ResultsFile:
    """Facts under their names, beside where they come from.

    `complete` says that nothing is left to run, `ok` whether what was measured is as it should be
    (None where nothing is judged), `verdict` the same in a line.
    """

    def __init__(self, path: Path | None, device: str, *, again: bool = False) -> None:
        """Without a path nothing is kept. `again`: what is there is not taken over.

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
        """Whole or not at all."""
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
    """What a file holds; nothing where there is none."""
    if path is None or not path.is_file():
        return {}
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
