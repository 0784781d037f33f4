"""A process's part in a run: its role, its trace writer, when that writer is closed, its samples of
memory, and its telemetry.

vLLM's processes exit in several ways.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.util
import os
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any

from driftscope.telemetry.engine import EngineTelemetry, WorkerTelemetry
from driftscope.trace.ranks import Place
from driftscope.trace.records import ResourceRow
from driftscope.trace.schema import Pseudonyms
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope_probes.settings import Settings, engine_cores, request_key

_KIB = 1024


def sample(source: str) -> Iterable[ResourceRow]:
    """Return one row, with current values. It reads files: call it on the writer's thread."""
    resident_pages = int(_head("/proc/self/statm").split()[1])
    _, _, available = _head("/proc/meminfo").partition(b"MemAvailable:")
    return (
        ResourceRow(
            time_s=time.time(),
            source=source,
            process_bytes=resident_pages * resource.getpagesize(),
            host_available_bytes=int(available.split()[0]) * _KIB,
            gpu_used_bytes=_gpu_used_bytes(),
        ),
    )


def _head(path: str) -> bytes:
    """Return a file's first 256 bytes; Python's file objects take several times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 256)
    finally:
        os.close(file)


def _gpu_used_bytes() -> int | None:
    """Return the GPU memory in use, or None if the engine has not initialised CUDA: asking would
    create a context on the GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


CLOSE_PRIORITY = 100


def role_of(place: Place) -> str:
    """Return the process's name among a run's sources; `driftscope.trace.ranks` parses it."""
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
            cpus=engine_cores(),
            pseudonyms=None if settings.identifiers else Pseudonyms(request_key()),
        ),
    )
    multiprocessing.util.Finalize(None, writer.close, exitpriority=CLOSE_PRIORITY)
    return writer


def note_loads(writer: TraceWriter, holder: Any, model: str, method: str = "load_weights") -> None:
    """Note each later call of a method of `holder` that gives `model`, TARGET or DRAFTER, other
    weights; nothing if there is no such method."""
    original = getattr(holder, method, None)
    if original is None:
        return

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with contextlib.suppress(Exception):  # the border: an update succeeds as it would without
            writer.note_weights(model)
        return result

    setattr(holder, method, load)


def publish(writer: TraceWriter, settings: Settings) -> None:
    """Publish a worker's figures for its engine core."""
    if settings.telemetry is None:
        return
    publisher = WorkerTelemetry(settings.trace, writer.source, writer.status)
    writer.subscribe(publisher.on_batches, publisher.publish)


def export(writer: TraceWriter, settings: Settings, model: str | None) -> EngineTelemetry | None:
    """Export the figures of the engine core and of its workers, which serve `model` under that
    name. Raises TelemetryError."""
    if settings.telemetry is None:
        return None
    telemetry = EngineTelemetry(
        settings.trace,
        writer.source,
        settings.telemetry,
        writer.status,
        model=model,
    )
    writer.subscribe(telemetry.on_batches, telemetry.flush)
    return telemetry
