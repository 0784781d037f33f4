"""Bounded value types for the fields of records that are read from untrusted JSON.

The bounds are defined in `driftscope.boundary.bounds`, and
`driftscope.trace.format.record_validation` checks records against them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from annotated_types import Interval as Within
from annotated_types import MaxLen

from driftscope.boundary.bounds import (
    MAX_DISTANCE_BINS,
    MAX_ITEMS,
    MAX_K,
    MAX_LAYERS,
    MAX_RANKS,
    MAX_ROWS_COUNTED,
    MAX_SECONDS,
    MAX_SINKS,
    MAX_TEXT_CHARS,
    MAX_TOKENS,
    MAX_UNIX_S,
)

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
