"""A lock on a directory between processes, for files that are read and then replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 2.0
"""Longest time in seconds that a process waits for the lock. The lock is held while a small file is
written; a disk that takes longer hangs."""
_POLL_S = 0.005
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EINVAL, errno.ENOSYS})
"""Error numbers of `flock` on a file system that cannot lock directories."""


@contextmanager
def locked(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock on `folder`; it is released at the latest when the process ends.

    The directory itself is locked, so that no lock file is left behind and every process that may
    read the directory can wait for it. On a file system that cannot lock directories, such as NFS,
    no lock is taken. Raises TimeoutError after `wait_s`, and OSError.
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
