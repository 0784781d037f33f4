"""Models of which one value was replaced: every field of every JSON file, and of the header."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driftscope.inspect.files import FIELDS

VALUES: dict[str, str] = {
    **{word: word for word in ("null", "true", "-1", "0", "1e999", "NaN", "-Infinity", "1.5")},
    **{word: word for word in ('""', "[]", "{}", '"\\ud800"', "[[[1]]]", '{"a": {"b": [null]}}')},
    "10**400": "1" + 400 * "0",
    "10**9": "1000000000",
    "2**62": str(2**62),
    "many": json.dumps([1] * 5000),
    "long": json.dumps("x" * 5000),
    "mixed": '[1, "a", null, true]',
}
"""JSON that replaces a value, by name."""
_PLACE = "\x00place"
Name = tuple[str, ...]


def places(content: Any, path: Name = ()) -> Iterator[Name]:
    """Yield the path of each value in a JSON document, lists apart from their elements."""
    for key, value in content.items() if isinstance(content, dict) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


def with_value(content: Any, path: Name, text: str) -> str:
    """Return the document with a JSON text in place of the value at a path."""
    copied = json.loads(json.dumps(content))
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = _PLACE
    return json.dumps(copied).replace(json.dumps(_PLACE), text)


def every_edit(content: dict[str, Any], *, more: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the name of each edit of one value and the document after it; with `more`, also of the
    fields that inspect reads by name and the document lacks."""
    named = [*places(content), *((name,) for name in FIELDS if more and name not in content)]
    for path in named:
        for value, text in VALUES.items():
            yield f"{'.'.join(path)} = {value}", with_value(content, path, text)


def header_of(model: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header of a model's only safetensors file, and the bytes behind it."""
    content = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(model: Path, header: str, body: bytes) -> None:
    """Replace a model's only safetensors file by one with this text as its header."""
    text = header.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    path = model / "model.safetensors"
    path.unlink(missing_ok=True)  # a link would lead to a shipped model
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def reshaped(model: Path, name: str, shape: list[int]) -> None:
    """Give a tensor another shape, with the file as the format demands."""
    header, body = header_of(model)
    stored = sorted((k for k in header if k != "__metadata__"), key=lambda k: _begin(header[k]))
    made, at = bytearray(), 0
    for key in stored:
        begin, end = header[key]["data_offsets"]
        width = (end - begin) // max(1, math.prod(header[key]["shape"]))
        if key == name:
            header[key]["shape"] = shape
        size = width * math.prod(header[key]["shape"])
        made += (body[begin:end] + bytes(size))[:size]
        header[key]["data_offsets"] = [at, at := at + size]
    write_header(model, json.dumps(header), bytes(made))


def _begin(entry: dict[str, Any]) -> int:
    return int(entry["data_offsets"][0])


def linked(model: Path, folder: Path) -> Path:
    """Return a copy of a model in `folder`, whose files are links until they are written anew."""
    folder.mkdir(parents=True)
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def rewrite(path: Path, text: str) -> None:
    """Replace a file of a `linked` model."""
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
