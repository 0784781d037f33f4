"""Searches folders for run directories, by the names of their files alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from driftscope.vocabulary import MANIFEST

LATEST = "latest"
"""Name that stands for the newest run."""
DEFAULT_FOLDERS = (Path("driftscope-runs"), Path("driftscope-bench"), Path("driftscope-demo"))
"""Folders that `serve`, `replay`, `bench` and `demo` write to."""
DEPTH = 3
"""Levels below a folder that are searched: `bench` writes FOLDER/TIME/LABEL/server."""
MAX_FOLDERS = 10_000
"""Directories that one search opens at most."""


def search(folder: Path) -> Iterator[Path]:
    """Yield the runs in `folder` and up to DEPTH levels below it, in no order.

    A folder that is a run itself is yielded alone. Symbolic links are not followed, and folders
    that cannot be read are passed over.
    """
    level = [folder] if folder.is_dir() else []
    opened = 0
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for each in level:
            if (opened := opened + 1) > MAX_FOLDERS:
                return
            names = _entries(each)
            if MANIFEST in names or any(is_status(name) for name in names):
                yield each
            else:
                below += [each / name for name, is_folder in names.items() if is_folder]
        level = below


def _entries(folder: Path) -> dict[str, bool]:
    """Return the names in a folder, each with whether it is a folder itself and no link."""
    try:
        with os.scandir(folder) as entries:
            return {each.name: each.is_dir(follow_symlinks=False) for each in entries}
    except OSError:
        return {}


def is_status(name: str) -> bool:
    """Return whether `name` is that of a status, or of the fault of a start that failed."""
    return name.startswith(("status-", "fault-")) and name.endswith(".json")
