"""A private folder for the files that a query engine writes while it runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from functools import cache
from pathlib import Path

from driftscope.errors import UsageError

PREFIX = "driftscope-queries-"
ABANDONED_S = 60.0
"""Age in seconds below which a folder may belong to a process that has not locked it yet."""
PATTERN = frozenset("*?[\\")
"""Characters that engines read as a pattern, or as an escape in one."""


class Scratch:
    """A folder of this process, below $TMPDIR; it is removed at `close` or at exit.

    The folder is locked, so that a later process can remove the folder of a process that was
    killed. Raises UsageError if $TMPDIR cannot be used.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if PATTERN & set(base):
            raise UsageError(
                f"TMPDIR={base!r}: queries cannot use a folder with one of "
                f"{' '.join(sorted(PATTERN))} in its name; set TMPDIR to another"
            )
        _remove_abandoned(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        handle = _locked(self.path)
        self._finalizer = weakref.finalize(self, _remove, self.path, handle, os.getpid())

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        self._finalizer()


def _locked(folder: Path) -> int | None:
    """Return a handle that holds the lock on `folder`; None if another process holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(folder: Path, handle: int | None, owner: int) -> None:
    if os.getpid() != owner:  # a forked child: the folder is still its parent's
        return
    shutil.rmtree(folder, ignore_errors=True)
    if handle is not None:
        os.close(handle)


@cache
def _remove_abandoned(base: str) -> None:
    """Remove the folders of this user's processes that ended without removing them; once per
    process."""
    for folder in Path(base).glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if not mine or time.time() - status.st_mtime < ABANDONED_S:
                continue
            handle = _locked(folder)
        except OSError:  # another process was faster
            continue
        if handle is not None:
            _remove(folder, handle, os.getpid())
