"""Builds records from unchecked JSON: typed and bounded, or refused with the field's name.

Types and bounds are declared with the fields of the record's dataclass, as in
`driftscope.boundary.bounds`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from driftscope.boundary import strict_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")

SHOWN_CHARS = 40
"""Number of characters of an invalid value that an error shows."""


def validated(kind: type[Record], value: Any) -> Record:
    """Return the `kind`, a dataclass, that a JSON value describes.

    Fields that `kind` does not have are ignored, because a newer minor version may add some. Raises
    ValueError that names the first field that is missing, of the wrong type or out of bounds.
    """
    from pydantic import ValidationError

    hashable: Any = kind
    try:
        # Serialise to JSON again: strict validation of JSON accepts a list for a tuple, but not "7"
        # for 7.
        record: Record = _adapter(hashable).validate_json(strict_json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(_words(error)) from None
    return record


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _words(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the file"
    if first["type"] in ("missing", "missing_argument"):
        return f"{name} is missing"
    return f"{name} is {_shown(first['input'])}, not {_wanted(first['type'], first['msg'])}"


_WANTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "dataclass_type": "an object",
}
"""Words for the expected value, by pydantic's error type."""


def _wanted(kind: str, message: str) -> str:
    return _WANTED.get(kind) or message.partition(" should ")[2].removeprefix("be ")


def _shown(value: Any) -> str:
    text = strict_json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
