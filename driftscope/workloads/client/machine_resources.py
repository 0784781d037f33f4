"""Resources that the sender's machine uses during a replay: memory of the host and of its GPUs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import psutil

from driftscope.trace.format.records import ResourceRow


class Sampler:
    """Makes one row per GPU, or a single row without a GPU.

    The GPUs are those of this machine, whoever uses them. They describe a server that runs here and
    say nothing about one elsewhere.
    """

    def __init__(self, source: str) -> None:
        self._source, self._process = source, psutil.Process()
        self._gpus = _gpus()

    def __call__(self) -> Iterable[ResourceRow]:
        """Return the rows of the current moment."""
        now = time.time()
        return [self._row(now, gpu) for gpu in self._gpus or (None,)]

    def _row(self, now: float, gpu: Any | None) -> ResourceRow:
        used, busy, power = (None, None, None) if gpu is None else _gpu_figures(gpu)
        return ResourceRow(
            time_s=now,
            source=self._source,
            process_bytes=self._process.memory_info().rss,
            host_available_bytes=psutil.virtual_memory().available,
            gpu_used_bytes=used,
            gpu_busy=busy,
            gpu_power_w=power,
        )


def _gpus() -> list[Any]:
    """Return NVML's handles; [] without its Python package, its library or a GPU."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _gpu_figures(gpu: Any) -> tuple[int | None, float | None, float | None]:
    """Return bytes in use, share of busy time and watts; None for what this GPU does not report."""
    import pynvml

    used = busy = power = None
    with contextlib.suppress(pynvml.NVMLError):
        used = int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)
    with contextlib.suppress(pynvml.NVMLError):
        busy = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    with contextlib.suppress(pynvml.NVMLError):
        power = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000
    return used, busy, power
