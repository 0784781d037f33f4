"""The only place that writes files: replaced by rename, never through a link placed by others.

    write_file(path, content)     replace a file whole; a device or a pipe is written in place
    create_file(path)             a descriptor of a new file; the path must not exist
    create_whole(path, content)   a new file that is never seen unfinished
    remove_leftovers(folder)      delete unfinished files of killed processes
    make_private_directory(path)  a directory that only its owner can enter

A temporary file has an unpredictable name and lies in the target's folder; it is removed
when writing fails. A user who gives `-` as the name of a file means standard output.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

STDOUT = Path("-")
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
PARTIAL = ".partial"
"""Suffix of an unfinished file."""
LEFTOVER_S = 600.0
"""Age in seconds from which an unfinished file counts as abandoned. Writing one takes at most the
seconds that sealing a full segment takes, and each write renews its age."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers of `link` on a file system without hard links."""


def write_file(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    durable: bool = True,
    parents: bool = False,
) -> None:
    """Replace the file at `path` as a whole.

    A link is followed and its target is replaced. An existing path that is not a regular file (a
    device, a pipe) is written in place. `mode`: permissions; by default those of the umask.
    `durable`: wait until the content is on disk, so that a power cut leaves either the old file or
    the new one. `parents`: create missing directories. Raises OSError; the old file is then
    unchanged.
    """
    if path == STDOUT:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    target = Path(os.path.realpath(path))
    if parents:
        target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        raise IsADirectoryError(f"{path}: is a directory; give the name of a file")
    if target.exists() and not target.is_file():
        _write_in_place(target, content)
    else:
        _replace(target, content, 0o666 & ~_umask() if mode is None else mode, durable)


def create_file(path: Path | str, mode: int = PRIVATE_FILE) -> int:
    """Create a new file and return a descriptor to write it; raises FileExistsError if the path
    exists, even as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def create_whole(path: Path, content: bytes) -> None:
    """Write a new private file that is complete from the moment it appears.

    Raises FileExistsError if the path exists, and OSError; nothing is left behind in either case.
    On a file system without hard links a reader may see the file unfinished.
    """
    partial = temporary_path(path)
    try:
        _fill(os.open(partial, os.O_WRONLY | os.O_CLOEXEC), content)
        os.link(partial, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _create_in_place(path, content)
    finally:
        with suppress(OSError):
            partial.unlink()


def remove_leftovers(folder: Path, older_s: float = LEFTOVER_S) -> None:
    """Delete the unfinished files in `folder` that have not been written to for `older_s` seconds.

    The rule is the file's age, not the process that wrote it: several engines may share a folder
    across containers and hosts, where a process number means nothing. If the rule is wrong, for
    example for a process that was suspended, that process's rename fails and the file that it would
    have replaced stays. Files that cannot be deleted stay, too. Raises nothing.
    """
    before_s = time.time() - older_s
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith(".") and path.name.endswith(PARTIAL):
                with suppress(OSError):
                    if path.lstat().st_mtime < before_s:
                        path.unlink()


def write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write every byte of `parts` in order; raises OSError, possibly after some of them were
    written."""
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]


def make_private_directory(path: Path) -> None:
    """Create a directory, with its parents, that only its owner can enter.

    An existing directory is left as it is. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_DIRECTORY)
    if not path.is_dir():
        raise NotADirectoryError(f"{path}: is not a directory")


def temporary_path(target: Path) -> Path:
    """Create an empty file with an unpredictable name next to `target`, which it is to replace.

    Only its owner can read it. Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PARTIAL)
    os.close(handle)
    return Path(name)


def sync(path: Path) -> None:
    """Wait until a file's content is on disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, content: bytes, mode: int, durable: bool) -> None:
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=PARTIAL)
    try:
        try:
            write_all(handle, [content])
            os.fchmod(handle, mode)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        Path(partial).replace(target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _fill(descriptor: int, content: bytes) -> None:
    """Write `content` to disk and close the descriptor."""
    try:
        write_all(descriptor, [content])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_in_place(path: Path, content: bytes) -> None:
    descriptor = create_file(path)
    try:
        _fill(descriptor, content)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _write_in_place(target: Path, content: bytes) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(f"{target}: became a regular file while it was opened")
        write_all(descriptor, [content])
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Return the process's umask, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
