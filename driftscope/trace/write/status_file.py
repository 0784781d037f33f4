"""The status file of one process, which a full disk must not keep from saying that it is full."""

from __future__ import annotations

import os
from pathlib import Path

from driftscope.boundary.file_output import PRIVATE_FILE, create_whole, write_all, write_file
from driftscope.trace.format.status import status_path

ROOM_BYTES = 8192
"""The file has a multiple of this size from the start, filled up with blanks: where the disk has no
room for a new one it is overwritten, which takes no room."""


class StatusFile:
    """Rewritten whole by rename; in place where that fails."""

    def __init__(self, run: Path, source: str) -> None:
        self._path = status_path(run, source)

    def begin(self, text: str) -> None:
        """Make the file; raises FileExistsError where another process has it, and OSError."""
        create_whole(self._path, _padded(text))

    def write(self, text: str) -> None:
        """Have the file hold `text`, a JSON object and a line's end; raises OSError where neither
        way is possible."""
        content = _padded(text)
        try:
            write_file(self._path, content, mode=PRIVATE_FILE, durable=False)
        except OSError as error:
            try:
                self._overwrite(content)
            except FileNotFoundError:  # it was never written: what matters is why
                raise error from None

    def _overwrite(self, content: bytes) -> None:
        """Write over what is there; a reader may meet half of it, and reads once more.

        First the file grows by blanks where it is too short: if the disk has no room even for
        those, or the process is killed meanwhile, it still holds what it held.
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
