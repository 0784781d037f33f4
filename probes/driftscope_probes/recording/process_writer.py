"""A process's part in a run: its role, its trace writer, and when that writer is closed.

vLLM's processes exit in several ways.
"""

from __future__ import annotations

import multiprocessing.util
import os

from driftscope.trace.format.privacy import Pseudonyms
from driftscope.trace.read.ranks import Place
from driftscope.trace.write.writer import TraceWriter
from driftscope.trace.write.writer_options import WriterOptions
from driftscope_probes.base.cpu_cores import CORES
from driftscope_probes.base.resource_sample import sample
from driftscope_probes.base.settings import Settings, request_key

CLOSE_PRIORITY = 100


def role_of(place: Place) -> str:
    """Return the process's name among a run's sources; `driftscope.trace.read.ranks` parses it."""
    replica = "" if place.replica is None else f".dp{place.replica}"
    return f"worker{place.rank}{replica}"


def open_writer(settings: Settings, role: str) -> TraceWriter:
    """Return the writer of this process under `role`, such as "worker0".

    The runner's shutdown hook closes the writer. Otherwise it is closed when the process ends:
    multiprocessing's children exit through os._exit, which runs finalizers but no atexit functions.
    Raises TraceError if the run directory cannot be written, ProbeError for a bad key.
    """
    writer = TraceWriter(
        settings.trace,
        source=f"{role}-{os.getpid()}",
        options=WriterOptions(
            max_bytes=settings.max_mb << 20,
            sampler=lambda: sample(writer.source),
            cpus=CORES,
            pseudonyms=None if settings.identifiers else Pseudonyms(request_key()),
        ),
    )
    multiprocessing.util.Finalize(None, writer.close, exitpriority=CLOSE_PRIORITY)
    return writer
