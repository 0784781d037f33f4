"""The trace writer of a process, and its end: vLLM's processes finish in several ways."""

from __future__ import annotations

import multiprocessing.util
import os

from driftscope.trace.writer import TraceWriter
from driftscope_probes.resources import sample
from driftscope_probes.settings import Settings

CLOSE_PRIORITY = 100


def open_writer(settings: Settings, role: str) -> TraceWriter:
    """The writer of this process under `role`, such as "worker0".

    Closed by the seam's shutdown hook; failing that when the process ends: multiprocessing's
    children leave through os._exit, which runs finalizers but no atexit functions.
    Raises TraceError when the run directory cannot be written.
    """
    source = f"{role}-{os.getpid()}"
    writer = TraceWriter(
        settings.trace,
        source=source,
        max_bytes=settings.max_mb << 20,
        sampler=lambda: sample(source),
    )
    multiprocessing.util.Finalize(None, writer.close, exitpriority=CLOSE_PRIORITY)
    return writer
