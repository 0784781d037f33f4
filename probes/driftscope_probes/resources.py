"""Memory of the recording process, its machine and its GPU."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from driftscope.trace.records import ResourceRow

_KIB = 1024


def sample(source: str) -> Iterable[ResourceRow]:
    """One row, now. Called on the writer's thread, since it reads files."""
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
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _available_bytes() -> int:
    with Path("/proc/meminfo").open(encoding="ascii") as lines:  # one of the first
        available = next(line for line in lines if line.startswith("MemAvailable"))
    return int(available.split()[1]) * _KIB


def _gpu_used_bytes() -> int | None:
    """Only where the engine has set a GPU up: asking must not be what creates a context on it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)
