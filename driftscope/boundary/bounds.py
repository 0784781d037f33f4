"""Upper bounds on what driftscope accepts from files, servers and requests that it does not trust.

Each bound is far above what a real engine, run or server has, and low enough that a value at the
bound costs little memory and time. The types carry the bounds to the fields of records;
`validated` builds such a record from unchecked JSON, or refuses it with the name of the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Interval as Within
from annotated_types import MaxLen

from driftscope.boundary.text import dumps

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

MAX_K = 1024
"""Draft tokens of one round; vLLM's own drafters stay below 32."""
MAX_DISTANCE_BINS = MAX_K + 4
"""Bins of attention by distance: one per depth, and four wider ones."""
MAX_LAYERS = 1024
"""Layers of a drafter, and captured layers of a target."""
MAX_HEADS = 65_536
"""Attention heads of a drafter, all layers together."""
MAX_SINKS = 4096
"""Slots of a sink set."""
MAX_TEXT_CHARS = 65_536
"""Characters of one string."""
MAX_LABEL_CHARS = 256
"""Characters of a workload label, or of another name that is stored with every row."""
MAX_TOKENS = 1 << 24
"""Tokens of one prompt, one answer or one context."""
MAX_COUNT = 1 << 62
"""Value of one counter, sum or gauge; it fits a signed 64-bit integer."""
MAX_UNIX_S = float(1 << 33)
"""Latest Unix time, in the year 2242; its nanoseconds fit a signed 64-bit integer."""
MAX_METRICS_BYTES = 32 << 20
"""Bytes, after decompression, of a page of metrics or of another answer about a server as a
whole."""
MAX_METRIC_SAMPLES = 32_768
"""driftscope's own samples on a page of metrics: about 26 per depth. An engine at K = 8 has fewer
than 500."""
MAX_METRIC_LABELS = 64
"""Different labels of an engine's samples on a page: engines and collectors of theirs give about
10."""
MAX_METRIC_LINE_CHARS = 8192
"""Characters of one line of a page of metrics."""
MAX_ANSWER_BYTES = 64 << 20
"""Bytes of one streamed answer to a prompt: about 250 bytes per token."""
MAX_ANSWER_CHARS = 4 << 20
"""Characters of one answer's text, including its tool calls."""
MAX_ANSWER_EVENTS = 1 << 21
"""Events of one stream: at most one per token, and an answer of a million tokens is rare."""
MAX_ROUNDS = 1 << 20
"""Rounds of speculation of one request."""
MAX_RANKS = 65_536
"""Number of processes of one kind of parallelism."""
MAX_ROWS_COUNTED = 1 << 53
"""A count in a status file; beyond it JSON readers lose the last digit."""
MAX_SECONDS = 1e9
"""A duration in seconds, about 30 years."""
MAX_ITEMS = 65_536
"""Elements of a list or an object in a JSON file."""
MAX_LIST = 1 << 22
"""Numbers of one list of a row: depths, layers and heads of a chain together."""
MAX_VALUES = 1 << 20
"""Values of a JSON file whose numbers are computed with, all lists and objects together: a model's
index of 150,000 tensors has as many."""
MAX_DIMENSIONS = 8
"""Dimensions of a tensor; those of language models have 4 at most."""
MAX_FILE_NAME_BYTES = 255
MAX_JSON_DEPTH = 64
"""Nesting depth of a JSON file."""
MAX_JSON_BYTES = 16 << 20
"""Bytes of a manifest, a status file, or a file of rules or settings."""
MAX_INPUT_BYTES = 1 << 30
"""Bytes of a file of prompts, a suite, or another tool's results."""
MAX_STREAM_BYTES = 1 << 30
"""Bytes of an Arrow stream, or of the file that it is sealed to. The writer seals a stream when it
has grown to 64 MiB."""
MAX_ROWS_PER_BYTE = 8
"""Rows of a sealed file per byte, applied above SMALL_FILE_ROWS. A request id, or a time that does
not lie on a straight line, takes more than a bit per row."""
SMALL_FILE_ROWS = 1 << 20
MAX_EXPANSION = 2048
"""Bytes of a row group per byte of its file, applied above SMALL_FILE_BYTES."""
SMALL_FILE_BYTES = 64 << 20
MAX_ROW_GROUP_BYTES = 16 << 30
"""Bytes of one row group of a sealed file, before compression."""
MAX_STATUSES = 4096
"""Status files of one run; each of its processes has one."""


Count = Annotated[int, Within(ge=0, le=MAX_ROWS_COUNTED)]
DraftLength = Annotated[int, Within(ge=0, le=MAX_K)]
LayerCount = Annotated[int, Within(ge=0, le=MAX_LAYERS)]
SinkCount = Annotated[int, Within(ge=0, le=MAX_SINKS)]
RankNumber = Annotated[int, Within(ge=0, le=MAX_RANKS)]
RankCount = Annotated[int, Within(ge=1, le=MAX_RANKS)]
Position = Annotated[int, Within(ge=0, le=MAX_TOKENS)]
SamplingInterval = Annotated[int, Within(ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, Within(ge=0.0, le=MAX_SECONDS)]
UnixTime = Annotated[float, Within(ge=0.0, le=MAX_UNIX_S)]
Share = Annotated[float, Within(ge=0.0, le=1.0)]
Ratio = Annotated[float, Within(ge=0.0, le=1e6)]
Text = Annotated[str, MaxLen(MAX_TEXT_CHARS)]
SinkSlots = Annotated[tuple[Position, ...], MaxLen(MAX_SINKS)]
DistanceEdges = Annotated[tuple[Position, ...], MaxLen(MAX_DISTANCE_BINS)]
Notes = Annotated[tuple[Text, ...], MaxLen(MAX_ITEMS)]
Counts = Annotated[Mapping[str, Count], MaxLen(MAX_ITEMS)]
"""Counts by name."""
Digests = Annotated[Mapping[str, Annotated[str, MaxLen(64)]], MaxLen(MAX_ITEMS)]
"""Checksums by name."""

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
        record: Record = _adapter(hashable).validate_json(dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(_error_words(error)) from None
    return record


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _error_words(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the file"
    if first["type"] in ("missing", "missing_argument"):
        return f"{name} is missing"
    return (
        f"{name} is {_short_text(first['input'])}, not {_requirement(first['type'], first['msg'])}"
    )


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


def _requirement(kind: str, message: str) -> str:
    return _WANTED.get(kind) or message.partition(" should ")[2].removeprefix("be ")


def _short_text(value: Any) -> str:
    text = dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def first_fault(error: ValidationError) -> str:
    """Return the first fault that pydantic found, and its place, without the value."""
    detail = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in detail["loc"])
    return f"{place}: {detail['msg']}" if place else str(detail["msg"])
