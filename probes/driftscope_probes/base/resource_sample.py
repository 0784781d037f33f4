"""Memory use of the recording process, its machine and its GPU."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterable

from driftscope.trace.format.records import ResourceRow

_KIB = 1024


def sample(source: str) -> Iterable[ResourceRow]:
    """Return one row, with current values. It reads files: call it on the writer's thread."""
    return (
        ResourceRow(
            time_s=time.time(),
            source=source,
            process_bytes=_resident_bytes(),
            host_available_bytes=_available_bytes(),
            gpu_used_bytes=_gpu_used_bytes(),
        ),
    )


def _resident_bytes() -> int:
    return int(_head("/proc/self/statm").split()[1]) * resource.getpagesize()


def _available_bytes() -> int:
    _, _, available = _head("/proc/meminfo").partition(b"MemAvailable:")
    return int(available.split()[0]) * _KIB


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
