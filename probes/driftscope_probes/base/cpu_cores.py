"""The cores that an engine's processes may use, as the first of them found itself.

vLLM's CPU backend binds a worker, and what that starts, to the cores that it computes on: some
versions before any plugin is loaded there. On those the probe's own threads would stand in its way.
"""

from __future__ import annotations

import os

VARIABLE = "DRIFTSCOPE_CORES"
"""Set by the first process for those that it starts."""


def _found() -> frozenset[int] | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    mine = os.sched_getaffinity(0)
    said = os.environ.setdefault(VARIABLE, ",".join(map(str, sorted(mine))))
    return frozenset(int(core) for core in said.split(",") if core.isdigit()) | mine


CORES = _found()
"""None where the system does not say."""


def free_cpu_cores() -> frozenset[int]:
    """Those that the calling thread is not bound to; all if it is bound to none."""
    if CORES is None:
        return frozenset()
    return CORES - os.sched_getaffinity(0) or CORES
