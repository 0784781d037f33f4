"""A result file as readers see it: its text, as JSON if it is, and as lines of JSON if they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.boundary.bounds import MAX_JSON_BYTES
from driftscope.boundary.file_input import first_line, parse_json, read_text
from driftscope.errors import UsageError

MOST_BYTES = 16 * MAX_JSON_BYTES
MOST_LINES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """A file that was read."""

    path: Path
    text: str = field(repr=False)
    document: Any = field(repr=False, default=None)
    """The file as one JSON value; None if it is not."""
    lines: tuple[Mapping[str, Any], ...] = field(repr=False, default=())
    """Its lines as JSON objects; () unless each line that is not empty is one."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The JSON object that the file is; empty if it is none."""
        return self.document if isinstance(self.document, dict) else {}

    @property
    def objects(self) -> tuple[Mapping[str, Any], ...]:
        """The JSON objects that the file holds: its lines, the items of its list, or itself."""
        if self.lines:
            return self.lines
        items = self.document if isinstance(self.document, list) else [self.document]
        return tuple(each for each in items if isinstance(each, dict))


def open_result(path: Path) -> ResultFile:
    """Read a file. Raises UsageError for one that cannot be read or is no UTF-8 text."""
    try:
        text = read_text(path, limit=MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not readable ({first_line(error)})") from error
    try:
        document = parse_json(text)
    except (ValueError, RecursionError):
        document = None
    lines = () if document is not None else _lines(text)
    return ResultFile(path=path, text=text, document=document, lines=lines)


def _lines(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return all lines as objects, or () if one is none; a last line may be cut off."""
    objects = list[Mapping[str, Any]]()
    rows = [row for row in text.splitlines() if row.strip()][:MOST_LINES]
    for number, row in enumerate(rows):
        try:
            value = parse_json(row)
        except (ValueError, RecursionError):
            if number == len(rows) - 1 and objects:
                break
            return ()
        if not isinstance(value, dict):
            return ()
        objects.append(value)
    return tuple(objects)
