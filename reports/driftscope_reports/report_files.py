"""Write a report atomically, so that a reader never sees part of it."""

from __future__ import annotations

from pathlib import Path

from driftscope.boundary.files import write_file


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, see `driftscope.boundary.files.write_file`. Raises
    OSError."""
    write_file(path, text.encode("utf-8", "replace"), parents=True)
