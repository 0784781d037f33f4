"""A lock of a directory between processes, for files in it that are read and then replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 2.0
"""Longest time that a process waits for the lock. It is held while a small file is written; a disk
that takes longer hangs."""
_POLL_S = 0.005
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL, errno.ENOSYS})
"""Error numbers of `flock` on a file system that cannot lock a directory."""


@contextmanager
def locked(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of `folder`, which ends with the process at the latest.

    The directory itself is locked: there is no lock file to leave behind, and whoever may look into
    it can wait. A file system that cannot lock directories, such as NFS, is used without. Raises
    TimeoutError after `wait_s`, and OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _acquire(descriptor, folder, time.monotonic() + wait_s)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = "another process has locked it for too long"
                raise TimeoutError(errno.ETIMEDOUT, message, str(folder)) from None
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        else:
            return
