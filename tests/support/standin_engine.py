"""A package that stands in for a serving engine, in processes that import it first."""

from __future__ import annotations

from pathlib import Path


def write_engine(folder: Path, module: str, code: str) -> Path:
    """Write `module`, such as vllm.entrypoints.openai.api_server, below `folder`, and return
    `folder`, which belongs on PYTHONPATH."""
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    for package in path.relative_to(folder).parents[:-1]:
        (folder / package / "__init__.py").touch()
    return folder
