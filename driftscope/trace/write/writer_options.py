"""The options of a trace writer, with their defaults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from driftscope.trace.format.privacy import Pseudonyms
from driftscope.trace.write.batch_encoder import Deferred

FLUSH_S = 0.95
"""Longest time that a row waits for the writer, in seconds. Readers are promised one second; each
flush costs about a millisecond of the serving process's interpreter, whatever it writes."""
QUEUE_ITEMS = 4096
"""Number of items (a step's chains are one) that may wait before new ones are dropped."""
MAX_BYTES = 2 << 30
"""Default limit on one process's record files on disk, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Everything about a trace writer except its run directory and its process."""

    max_bytes: int = MAX_BYTES
    """Limit on the process's record files on disk, in bytes."""
    flush_s: float = FLUSH_S
    """Longest time that a row waits for the writer, in seconds."""
    queue_items: int = QUEUE_ITEMS
    """Number of items that may wait before new ones are dropped."""
    clock: Callable[[], float] = time.time
    """Returns the Unix time in seconds."""
    sampler: Deferred | None = None
    """Builds additional rows, at most every SAMPLE_S and only while other rows arrive."""
    cpus: frozenset[int] | None = None
    """Cores of the writer's thread; None: those of the thread that opens the writer."""
    pseudonyms: Pseudonyms | None = None
    """Replaces identifiers in files, in what `subscribe` passes on and in errors; None: identifiers
    are kept."""


DEFAULTS = WriterOptions()
