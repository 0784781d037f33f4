"""The command as users run it: in its own process, with everything or only the base install."""

from __future__ import annotations

import importlib.metadata
import os
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import run_command

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]
ENGINES = ("vllm", "torch", "functorch", "triton", "transformers", "safetensors", "tokenizers")


def _run(
    *arguments: object, cwd: Path, flags: tuple[str, ...], path: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DRIFTSCOPE_", "VLLM_"))}
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-m", "driftscope", *map(str, arguments)],
        cwd=cwd,
        env={**clean, "PYTHONPATH": path, "NO_COLOR": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def driftscope(tmp_path: Path) -> Driftscope:
    """The command in this process, run in an empty directory."""
    return lambda *arguments, **environ: run_command(*arguments, cwd=tmp_path, **environ)


@pytest.fixture(scope="session")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this environment's packages except the engines: links to the real ones."""
    folder = tmp_path_factory.mktemp("base")
    for packages in map(Path, site.getsitepackages()):
        for entry in packages.iterdir():
            name = entry.name.replace("-", "_").lower()
            if not name.startswith(ENGINES) and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def without_engines(base_install: Path, tmp_path: Path) -> Driftscope:
    """The command where neither torch nor vLLM can be imported."""
    packages = ("driftscope", "driftscope_probes", "driftscope_reports", "driftscope_lab")
    ours = [str(Path(p).resolve()) for name in packages for p in sys.path if Path(p, name).is_dir()]
    path = [*dict.fromkeys(ours), str(base_install)]

    def run(
        *arguments: object, before: Path | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        first = [] if before is None else [str(before)]
        return _run(
            *arguments,
            cwd=tmp_path,
            flags=("-S",),
            path=os.pathsep.join([*first, *path]),
            **environ,
        )

    return run


@pytest.fixture
def version() -> str:
    return importlib.metadata.version("driftscope")
