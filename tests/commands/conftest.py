"""The command in this process, and in one of its own with only the base install."""

from __future__ import annotations

import importlib.metadata
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import Driftscope, run_command

ENGINES = ("vllm", "torch", "functorch", "triton", "transformers", "safetensors", "tokenizers")


@pytest.fixture
def driftscope(tmp_path: Path) -> Driftscope:
    """The command in this process, run in an empty directory."""
    return lambda *arguments, **environ: run_command(*arguments, cwd=tmp_path, **environ)


@pytest.fixture
def without_engines(tmp_path: Path) -> Driftscope:
    """The command in a process where neither torch nor vLLM can be imported."""
    packages = ("driftscope", "driftscope_probes", "driftscope_reports", "driftscope_lab")
    ours = [str(Path(p).resolve()) for name in packages for p in sys.path if Path(p, name).is_dir()]
    base = tmp_path / "base"
    base.mkdir()
    for installed in map(Path, site.getsitepackages()):
        for entry in installed.iterdir():
            name = entry.name.replace("-", "_").lower()
            if not name.startswith(ENGINES) and entry.suffix != ".pth":
                (base / entry.name).symlink_to(entry)
    path = [*dict.fromkeys(ours), str(base)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}

    def run(
        *arguments: object, before: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        found = os.pathsep.join([*([] if before is None else [str(before)]), *path])
        return subprocess.run(
            [sys.executable, "-W", "error", "-S", "-m", "driftscope", *map(str, arguments)],
            cwd=tmp_path,
            env={**clean, "PYTHONPATH": found, "NO_COLOR": "1", **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def version() -> str:
    return importlib.metadata.version("driftscope")
