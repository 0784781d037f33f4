"""The only place that reads and writes files.

    open_regular(path)            a descriptor, after a check of the file type
    read_bytes(path)              the whole content, at most `limit` bytes
    read_text(path)               the content decoded as UTF-8
    read_json(path)               the content parsed as JSON of bounded depth, all strings encodable
    parse_bounded_json(content)   JSON of bounded size, whose numbers are finite
    write_file(path, content)     replace a file whole; a device or a pipe is written in place
    write_text(path, text)        the same of text, into a folder that is there
    create_file(path)             a descriptor of a new file; the path must not exist
    create_whole(path, content)   a new file that is never seen unfinished
    remove_leftovers(folder)      delete unfinished files of killed processes
    make_private_directory(path)  a directory that only its owner can enter
    locked(folder)                a lock between processes, for files that are read and replaced

A run directory, a report or a suite may come from anyone. A named pipe or a device would block its
reader forever, a huge file would exhaust its memory, and a deeply nested file its stack. A file is
replaced by rename, never through a link placed by others; a temporary file has an unpredictable
name, lies in the target's folder, and is removed when writing fails. A user who gives `-` as the
name of a file means standard output.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import (
    MAX_COUNT,
    MAX_INPUT_BYTES,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_LABEL_CHARS,
    MAX_VALUES,
    SHOWN_CHARS,
)
from driftscope.errors import UsageError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}
_CHUNK = 1 << 24
"""Bytes read at once. A file that grows while it is read is still bounded."""


class UnfitFileError(OSError):
    """The path is not a regular file, or the file is larger than its bound."""


@contextmanager
def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[int]:
    """Open a regular file and yield its descriptor, which is closed afterwards.

    `follow`: whether a symbolic link as the last part of the path is followed; set it to False in a
    folder to which others may write. Raises OSError, and its subclass UnfitFileError for anything
    that is not a regular file. Never blocks: a pipe is opened without waiting for its other end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _unfit(path, "is a socket, not a regular file") from error
        if error.errno == errno.ELOOP and not follow:
            raise _unfit(path, "is a symbolic link, which is not followed here") from error
        raise
    except ValueError as error:  # a NUL in the name
        raise _unfit(path, str(error)) from error
    try:
        mode = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if mode != stat.S_IFREG:
            raise _unfit(path, f"is {_KINDS.get(mode, 'something else')}, not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(
    path: str | os.PathLike[str], *, limit: int = MAX_INPUT_BYTES, follow: bool = True
) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; raises like `open_regular`."""
    with open_regular(path, follow=follow) as descriptor:
        parts, left = [], 0 if os.fstat(descriptor).st_size > limit else limit + 1
        while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise _unfit(path, f"is larger than {limit} bytes")
    return b"".join(parts)


def read_text(path: str | os.PathLike[str], *, limit: int = MAX_INPUT_BYTES) -> str:
    """Return the content as text. Raises like `read_bytes`, and ValueError if the bytes are not
    UTF-8."""
    return read_bytes(path, limit=limit).decode("utf-8")


def read_json(
    path: str | os.PathLike[str], *, limit: int = MAX_JSON_BYTES, follow: bool = True
) -> Any:
    """Return the content as JSON. Raises like `read_bytes`, and ValueError like `parse_json`."""
    return parse_json(read_bytes(path, limit=limit, follow=follow))


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text, with every string encodable as UTF-8.

    A lone surrogate (JSON allows `"\\ud800"`) becomes U+FFFD. NaN and Infinity, which are not JSON
    although Python writes them, become null. A whole number beyond every float is infinite, as
    1e999 is. Raises ValueError for text that is not JSON and for nesting deeper than
    MAX_JSON_DEPTH.
    """
    return _loaded(content, parse_int=_whole, parse_constant=lambda _: None)


def parse_bounded_json(content: bytes) -> Any:
    """Return the value of a JSON text like `parse_json`, of a file whose numbers are computed with.

    Raises ValueError also for more than MAX_VALUES values, for NaN and for numbers beyond
    MAX_COUNT, such as 1e999.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) >= MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES} values")
    return _loaded(
        content, parse_int=_bounded(int), parse_float=_bounded(float), parse_constant=_refused
    )


def _loaded(content: str | bytes, **hooks: Any) -> Any:
    try:
        value = json.loads(content, **hooks)
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_JSON_DEPTH} levels") from None
    return _encodable(value, MAX_JSON_DEPTH)


def _whole(text: str) -> int | float:
    return math.inf if math.isinf(float(text)) else int(text)


def _bounded(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text) if len(text) <= MAX_LABEL_CHARS else math.inf
        if not -MAX_COUNT <= value <= MAX_COUNT:
            _refused(text)
        return value

    return number


def _refused(text: str) -> None:
    raise ValueError(f"holds the number {text[:SHOWN_CHARS]}, which is out of bounds")


def encodable(text: str) -> str:
    """Return `text` with U+FFFD in place of each lone surrogate."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the number and file name of an OSError;
    the name of its class if the message is empty."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _encodable(value: Any, levels: int) -> Any:
    if not levels:
        raise ValueError(f"is nested deeper than {MAX_JSON_DEPTH} levels")
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):  # most are long lists of numbers, which need no copy
        for at, item in enumerate(value):
            if isinstance(item, str | list | dict):
                value[at] = _encodable(item, levels - 1)
        return value
    if isinstance(value, dict):
        return {encodable(key): _encodable(inner, levels - 1) for key, inner in value.items()}
    return value


def _unfit(path: str | os.PathLike[str], words: str) -> UnfitFileError:
    return UnfitFileError(errno.EINVAL, words, os.fspath(path))


STDOUT = Path("-")
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
PARTIAL = ".partial"
"""Suffix of an unfinished file."""
_KEPT_BYTES = 200
"""Bytes of a file's name that its unfinished file has: with the rest it has fewer than 255."""
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
    try:
        if parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory; give the name of a file")
        if target.exists() and not target.is_file():
            _write_in_place(target, content)
        else:
            _replace(target, content, mode, durable=durable)
    except OSError as error:  # a failed write names no file, and others the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace(target: Path, content: bytes, mode: int | None, *, durable: bool) -> None:
    partial = temporary_path(target)
    try:
        _fill(os.open(partial, os.O_WRONLY | os.O_CLOEXEC), content, durable=durable)
        partial.chmod(0o666 & ~_umask() if mode is None else mode)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to write is missing: it is not made, because a typo
    would then hide the file."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: {path.parent} is no folder; make it first")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as `write_file` does. Raises UsageError if its folder is missing, and
    OSError."""
    check_folder(path)
    write_file(path, text.encode("utf-8", "replace"))


def create_file(path: Path | str) -> int:
    """Create a new private file and return a descriptor to write it; raises FileExistsError if the
    path exists, even as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, PRIVATE_FILE)


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


def remove_leftovers(folder: Path) -> None:
    """Delete the unfinished files in `folder` that have not been written to for LEFTOVER_S seconds.

    The rule is the file's age, not the process that wrote it: several engines may share a folder
    across containers and hosts, where a process number means nothing. If the rule is wrong, for
    example for a process that was suspended, that process's rename fails and the file that it would
    have replaced stays. Files that cannot be deleted stay, too. Raises nothing.
    """
    before_s = time.time() - LEFTOVER_S
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
    begin = os.fsdecode(os.fsencode(target.name)[:_KEPT_BYTES])
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{begin}.", suffix=PARTIAL)
    os.close(handle)
    return Path(name)


def sync(path: Path) -> None:
    """Wait until a file's content is on disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, content: bytes, *, durable: bool = True) -> None:
    """Write `content`, to disk if it is to be `durable`, and close the descriptor."""
    try:
        write_all(descriptor, [content])
        if durable:
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
    descriptor = _opened_for_writing(target, time.monotonic() + WAIT_S)
    try:
        os.set_blocking(descriptor, True)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(f"{target}: became a regular file while it was opened")
        write_all(descriptor, [content])
    finally:
        os.close(descriptor)


def _opened_for_writing(target: Path, deadline: float) -> int:
    """Return a descriptor of a device or a pipe; the reader of a pipe may never come."""
    while True:
        try:
            return os.open(target, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "no process reads this pipe") from error
        time.sleep(_POLL_S)


def _umask() -> int:
    """Return the process's umask, which mkstemp ignores; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


WAIT_S = 2.0
"""Longest time in seconds that a process waits for the lock, which is held while a small file is
written, so that a disk that takes longer hangs; and for the reader of a pipe."""
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
