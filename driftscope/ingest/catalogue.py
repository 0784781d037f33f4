"""Readers by name, and the choice of one for a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from driftscope.boundary.json_document import INGESTED, text, written_names
from driftscope.errors import Unknown, UnknownKindError, UsageError, nearest_kind
from driftscope.ingest import engines, prometheus, server_log, tools
from driftscope.ingest.base import (
    REGISTERED,
    BadFigureError,
    Figures,
    IngestedFigures,
    Reader,
    ResultFile,
    completed,
    open_result,
)

_MODULES = (engines, prometheus, server_log, tools)
"""Modules that enter readers into REGISTERED."""
READERS: Mapping[str, Reader] = REGISTERED
MOST_PATHS = 40
"""Paths within objects that are tried, and objects that are looked at for them: responses that a
proxy logged are a few levels deep."""
ADDING = "docs/extending/add-a-result-reader.md"


def ingest(path: Path, name: str | None = None) -> tuple[Reader, tuple[Figures, ...]]:
    """Read a result file with the reader `name`, or with the one that recognises it.

    Raises UnknownKindError for a file that no reader recognises, and UsageError for one that cannot
    be read, that several recognise, or whose content no tool writes.
    """
    file = open_result(path)
    reader = None if name is None else READERS.get(name)
    if name is not None and reader is None:
        raise UsageError(f"--format {name}: no such format; there are {', '.join(READERS)}")
    where = ""
    if reader is None:
        file, reader, where = _chosen(file)
    try:
        found = tuple(completed(figures) for figures in reader.read(file))
    except BadFigureError as error:
        raise UsageError(f"{path}: cannot be read as {reader.name}: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The border: a file can hold anything anywhere.
        raise UsageError(
            f"{path}: is not what {reader.title} writes ({type(error).__name__}: {error}); report "
            "it with the file if the tool wrote it"
        ) from error
    if all(figures.is_empty and figures.accepted is None for figures in found):
        raise UsageError(f"{path}: {reader.title}: holds no figure of acceptance or time")
    if where:
        words = f"read from what its objects hold in {where}"
        found = tuple(
            replace(figures, assumptions=(words, *figures.assumptions)) for figures in found
        )
    return reader, found


def _chosen(file: ResultFile) -> tuple[ResultFile, Reader, str]:
    """Return the file, or what its objects hold at a path of keys, the only reader that recognises
    it, and the path in words."""
    for path in ((), *_paths(file)):
        held = file.inside(path) if path else file
        readers = [] if held is None else [one for one in READERS.values() if one.recognises(held)]
        if len(readers) > 1:  # an answer that quotes a log is none
            readers = [one for one in readers if one.read is not server_log.server_log]
        if held is not None and len(readers) == 1:
            return held, readers[0], ".".join(path)
        if readers:
            names = ", ".join(reader.name for reader in readers)
            raise UsageError(f"{file.path}: fits {names}; name one with --format")
    formats = (
        (f"{one.name} ({one.title})", marks) for one in READERS.values() for marks in one.marks
    )
    raise UnknownKindError(
        Unknown(
            what=f"{file.path}",
            instead="it is not read",
            nearest=nearest_kind(formats, lambda mark: _has(file.text, mark)),
            adding=f"`driftscope ingest --list` has the formats, {ADDING} how to add one",
        )
    )


def _paths(file: ResultFile) -> Iterator[tuple[str, ...]]:
    """Yield the paths of keys to objects within the objects of a file, the shortest first."""
    waiting = deque[tuple[str, ...]]([()])
    tried = 0
    while waiting and tried < MOST_PATHS:
        path = waiting.popleft()
        held = file.inside(path) if path else file
        if path:
            tried += 1
            yield path
        rows = held.objects[:MOST_PATHS] if held else ()
        waiting += dict.fromkeys(
            (*path, str(key))
            for row in rows
            for key, value in row.items()
            if isinstance(value, dict)
            or (isinstance(value, list) and value and isinstance(value[0], dict))
            or (isinstance(value, str) and value[:1] == "{")
        )


def _has(text: str, mark: str) -> bool:
    return (f'"{mark}"' if mark.isidentifier() else mark) in text


def to_json(found: Sequence[tuple[Path, Reader, tuple[Figures, ...]]]) -> str:
    """Return the figures of all files as text, newline at the end."""
    names = written_names(IngestedFigures)
    files = [
        {
            "file": path.name,
            "format": reader.name,
            "figures": [{name: getattr(part, name) for name in names} for part in parts],
        }
        for path, reader, parts in found
    ]
    return text(INGESTED, {"files": files})
