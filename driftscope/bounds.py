"""Bounds on everything that driftscope reads and did not just write: one table, with reasons.

A value beyond its bound is an error that names the file and the value. The bounds are far above
what any engine produces, and low enough that a hostile file of a few kilobytes cannot take the
memory or the time of whoever opens it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from annotated_types import Interval, MaxLen

MAX_K = 1024
"""Draft tokens of a chain."""
MAX_LAYERS = 1024
"""Layers of a drafter, and captured layers of a target."""
MAX_HEADS = 65_536
"""Attention heads of all layers of a drafter."""
MAX_SINKS = 4096
"""Slots of a sink set."""
MAX_RANKS = 65_536
"""Processes of each kind of parallelism."""
MAX_TOKENS = 1 << 31
"""Tokens of a context, a prompt or an output, and every other count of a row."""
MAX_ROWS_COUNTED = 1 << 53
"""A count that a status file holds: beyond it JSON readers lose the last digit."""
MAX_TEXT_CHARS = 65_536
"""Characters of a text: a request id, an error, a note."""
MAX_LABEL_CHARS = 256
"""Characters of a workload label."""
MAX_ITEMS = 65_536
"""Elements of a list or an object in a JSON file."""
MAX_LIST = 1 << 22
"""Numbers of one list of a row: depths, layers and heads of a chain together."""
MAX_JSON_DEPTH = 64
"""Nesting of a JSON file."""
MAX_JSON_BYTES = 16 << 20
"""A manifest or a status file; a report's own figures have MAX_REPORT_BYTES."""
MAX_REPORT_BYTES = 256 << 20
"""A report that is read back."""
MAX_INPUT_BYTES = 1 << 30
"""A file of prompts, a suite, a rule file, another tool's results."""
MAX_STREAM_BYTES = 8 << 30
"""An Arrow stream. The writer seals one when it has grown to 64 MiB."""
MAX_ROWS_PER_BYTE = 8
"""Rows of a sealed file for each of its bytes, above SMALL_FILE_ROWS: a request id or a time that
follows no line takes more than a bit."""
SMALL_FILE_ROWS = 1 << 20
MAX_EXPANSION = 2048
"""Bytes of a column for each byte of its file, above SMALL_FILE_BYTES."""
SMALL_FILE_BYTES = 64 << 20
MAX_COLUMN_BYTES = 4 << 30
"""Bytes of a column in one row group of a sealed file, before compression."""
MAX_STATUSES = 4096
"""Status files of one run: a process of it has one."""
EARLIEST_S = 946_684_800.0
"""2000-01-01 as Unix time: a clock that was not set at boot gives less."""
LATEST_S = 4_102_444_800.0
"""2100-01-01 as Unix time."""
MAX_SECONDS = 1e9
"""A duration, about 30 years."""

Count = Annotated[int, Interval(ge=0, le=MAX_ROWS_COUNTED)]
DraftLength = Annotated[int, Interval(ge=0, le=MAX_K)]
LayerCount = Annotated[int, Interval(ge=0, le=MAX_LAYERS)]
SinkCount = Annotated[int, Interval(ge=0, le=MAX_SINKS)]
RankNumber = Annotated[int, Interval(ge=0, le=MAX_RANKS)]
RankCount = Annotated[int, Interval(ge=1, le=MAX_RANKS)]
Seconds = Annotated[float, Interval(ge=0.0, le=MAX_SECONDS)]
UnixTime = Annotated[float, Interval(ge=0.0, le=LATEST_S)]
Share = Annotated[float, Interval(ge=0.0, le=1.0)]
Ratio = Annotated[float, Interval(ge=0.0, le=1e6)]
Text = Annotated[str, MaxLen(MAX_TEXT_CHARS)]
Position = Annotated[int, Interval(ge=0, le=MAX_TOKENS)]
SamplingInterval = Annotated[int, Interval(ge=0, le=MAX_TOKENS)]
SinkSlots = Annotated[tuple[Position, ...], MaxLen(MAX_SINKS)]
Notes = Annotated[tuple[Text, ...], MaxLen(MAX_ITEMS)]
Counts = Annotated[Mapping[str, Count], MaxLen(MAX_ITEMS)]
"""Counts by name."""
Digests = Annotated[Mapping[str, Annotated[str, MaxLen(64)]], MaxLen(MAX_ITEMS)]
"""Checksums by name."""
