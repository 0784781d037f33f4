"""A private folder for what a query engine keeps on disk while it runs."""

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
"""A folder younger than this may belong to a process that has not locked it yet."""
PATTERN = frozenset("*?[\\")
"""Characters that engines read as a pattern, or as the escape of one."""


class Scratch:
    """A folder of this process's own, below $TMPDIR; it goes at `close` or at exit.

    The folder is locked, so that the next process can remove the folder of one that was killed.
    Raises UsageError where $TMPDIR cannot be used.
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
    """Return a handle that holds the lock of `folder`; None where another process holds it."""
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
    """Remove the folders of this user's processes that ended without doing so, once a process."""
    for folder in Path(base).glob(f"{PREFIX}*"):
        try:
            found = folder.lstat()
            mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if not mine or time.time() - found.st_mtime < ABANDONED_S:
                continue
            handle = _locked(folder)
        except OSError:  # another process was faster
            continue
        if handle is not None:
            _remove(folder, handle, os.getpid())
