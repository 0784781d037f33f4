"""JSON documents: what `--json` prints is made here, from records and plain values.

A record is written with its fields under their own names, and with the properties that are
`written_property`. Keys are sorted and nothing depends on the clock: the same runs give the same
bytes. null stands where a quantity does not exist or is no finite number. Lists by depth start with
depth 1.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Generic, Self, TypeVar, overload

from driftscope.boundary.files import UnfitFileError, read_json
from driftscope.boundary.text import dumps
from driftscope.errors import Unknown, UnknownKindError, UsageError

REPORT, COMPARISON, CHECK, ADVICE = "report", "comparison", "check", "advice"
PROBE, REPLAY, WATCH = "probe", "replay", "watch"
RUNS, FILES = "runs", "files"
INSPECTION, INSPECTION_COMPARISON = "inspection", "inspection_comparison"
ABLATION, INGESTED = "ablation", "ingested"
SCHEMA_VERSION = 1
"""Version of each kind of document: a changed or removed key changes it, a new one does not."""
_READ_BY = {
    REPORT: "the JSON report of `driftscope analyze`; give the run directories that it is about",
    INSPECTION: "a document of `driftscope inspect`; `driftscope compare` reads it",
    ABLATION: "a document of `driftscope ablate`",
}
"""Kinds of documents that a user may give in place of a run, and what to do with them."""
DIGITS = 9
"""Significant digits: more than the trace's float32 holds, fewer than platforms agree on."""
V = TypeVar("V")


class written_property(Generic[V]):  # noqa: N801  used like `property`
    """A property of a record that its JSON document has, too."""

    def __init__(self, get: Callable[[Any], V]) -> None:
        self.get, self.__doc__ = get, get.__doc__

    @overload
    def __get__(self, record: None, kind: type) -> Self: ...
    @overload
    def __get__(self, record: object, kind: type) -> V: ...
    def __get__(self, record: object | None, kind: type) -> Self | V:
        return self if record is None else self.get(record)


@cache
def written_names(kind: type) -> tuple[str, ...]:
    """Return the names of a record's fields and written properties."""
    properties = [
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if isinstance(value, written_property)
    ]
    return (*(f.name for f in fields(kind)), *properties)


def plain(value: Any, digits: int | None = DIGITS) -> Any:
    """Return a record, or values that contain records, as values of JSON; floats have this many
    significant digits, all of them if None, and are None where they are not finite."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name), digits) for name in written_names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item, digits) for item in value]
    return str(value) if isinstance(value, PurePath) else value


def document(kind: str, content: Any, digits: int | None = DIGITS) -> dict[str, Any]:
    """Return a record, or a mapping of keys to values, as a document of this kind."""
    return {"kind": kind, "schema_version": SCHEMA_VERSION, **plain(content, digits)}


def text(kind: str, content: Any, digits: int | None = DIGITS) -> str:
    """Return `content` as the text of a document of this kind, newline at the end.

    Documents that describe one moment, and are not compared to the byte, keep all `digits`.
    """
    return layout(document(kind, content, digits))


def files_text(written: Sequence[Any]) -> str:
    """Return the files that a command wrote, as text."""
    return text(FILES, {"written": written})


def line(kind: str, content: Any) -> str:
    """Return `content` as a document in one line of text, with all digits."""
    return dumps(document(kind, content, None), sort_keys=True) + "\n"


def layout(content: Any) -> str:
    """Return plain values as text: sorted keys, one space of indent, newline at the end."""
    return dumps(content, indent=1, sort_keys=True) + "\n"


def read_document(path: Path, wanted: str = "") -> dict[str, Any]:
    """Return a document of the wanted kind and of this version; of no kind where a file stands in
    place of a run.

    Raises UnknownKindError for a file of something else, UsageError for another document, OSError.
    """
    try:
        content = read_json(path)
    except (ValueError, UnfitFileError):  # no JSON, or larger than any document
        if not path.is_file():
            raise
        content = None
    found: dict[str, Any] = content if isinstance(content, dict) else {}
    kind = found.get("kind")
    if not isinstance(kind, str) or "schema_version" not in found:
        raise UnknownKindError(
            Unknown(
                what=str(path),
                instead="it is no run and no document of driftscope",
                adding=f"`driftscope ingest {shlex.quote(str(path))}` reads logs, metrics pages "
                "and other tools' result files",
            )
        )
    if kind != wanted:
        raise UsageError(f"{path}: is {_READ_BY.get(kind, f'a document of kind {kind!r}')}")
    if found["schema_version"] != SCHEMA_VERSION:
        raise UsageError(f"{path}: is of another version of driftscope; make it again")
    return found
