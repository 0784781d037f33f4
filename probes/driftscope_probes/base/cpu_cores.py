"""CPU cores that an engine's processes may use, as the first of these processes found them.

vLLM's CPU backend binds a worker, and the threads that it starts, to the cores that it computes on;
some versions do so before any plugin is loaded. The probe's own threads would slow the worker down
on those cores.
"""

from __future__ import annotations

import os

VARIABLE = "DRIFTSCOPE_CORES"
"""Environment variable that the first process sets for its child processes."""


def _inherited() -> frozenset[int] | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    mine = os.sched_getaffinity(0)
    listed = os.environ.setdefault(VARIABLE, ",".join(map(str, sorted(mine))))
    return frozenset(int(core) for core in listed.split(",") if core.isdigit()) | mine


CORES = _inherited()
"""Cores available to the engine's processes; None if the system does not report them."""


def free_cpu_cores() -> frozenset[int]:
    """Return the cores that the calling thread is not bound to; all if it is bound to all."""
    if CORES is None:
        return frozenset()
    return CORES - os.sched_getaffinity(0) or CORES
