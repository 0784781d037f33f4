"""The status file of one process, which must be able to report a full disk even on that disk."""

from __future__ import annotations

import os
from pathlib import Path

from driftscope.boundary.files import PRIVATE_FILE, create_whole, write_all, write_file
from driftscope.trace.format.status import status_path

ROOM_BYTES = 8192
"""Unit of the file's size in bytes: the file is padded with blanks to a multiple of it. If the disk
has no room for a new file, the old one is overwritten, which takes no room."""


class StatusFile:
    """A file that is replaced as a whole by rename, or overwritten in place if that fails."""

    def __init__(self, run: Path, source: str) -> None:
        self._path = status_path(run, source)

    def begin(self, text: str) -> None:
        """Create the file; raises FileExistsError if another process has it, and OSError."""
        create_whole(self._path, _padded(text))

    def write(self, text: str) -> None:
        """Write `text`, a JSON object and a newline; raises OSError if neither way is possible."""
        content = _padded(text)
        try:
            write_file(self._path, content, mode=PRIVATE_FILE, durable=False)
        except OSError as error:
            try:
                self._overwrite(content)
            except FileNotFoundError:  # it was never written: the first error says why
                raise error from None

    def _overwrite(self, content: bytes) -> None:
        """Overwrite the file in place; a reader who sees an incomplete file reads it again.

        If the file is too short, it first grows by blanks: if the disk has no room even for these,
        or the process is killed meanwhile, the file keeps its content.
        """
        descriptor = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            write_all(descriptor, [b" " * (len(content) - size)])
            os.lseek(descriptor, 0, os.SEEK_SET)
            write_all(descriptor, [content.ljust(size)])
        finally:
            os.close(descriptor)


def _padded(text: str) -> bytes:
    content = text.encode()
    return content + b" " * (-len(content) % ROOM_BYTES)
