"""The only place that reads files: regular files of bounded size, in strict UTF-8 and JSON.

A run directory, a report or a suite may come from anyone. A named pipe or a device would block its
reader forever, a huge file would exhaust its memory, and a deeply nested file its stack. Everything
driftscope reads from disk goes through here, or through a library that is given the bytes.

    open_regular(path)      a descriptor, after a check of the file type
    read_bytes(path)        the whole content, at most `limit` bytes
    read_text(path)         the content decoded as UTF-8
    read_json(path)         the content parsed as JSON of bounded depth, all strings encodable
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from driftscope.boundary.bounds import MAX_INPUT_BYTES, MAX_JSON_BYTES, MAX_JSON_DEPTH

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
        parts, left = [], limit + 1
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
    although Python writes them, become null. Raises ValueError for text that is not JSON and for
    nesting deeper than MAX_JSON_DEPTH.
    """
    try:
        value = json.loads(content, parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_JSON_DEPTH} levels") from None
    return _encodable(value, MAX_JSON_DEPTH)


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
    if isinstance(value, list):
        return [_encodable(each, levels - 1) for each in value]
    if isinstance(value, dict):
        return {encodable(key): _encodable(each, levels - 1) for key, each in value.items()}
    return value


def _unfit(path: str | os.PathLike[str], words: str) -> UnfitFileError:
    return UnfitFileError(errno.EINVAL, words, os.fspath(path))
