"""The cores that a process may use, as they were when the plugin was loaded."""

from __future__ import annotations

import os

CORES = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
"""vLLM's CPU backend later binds the serving thread, and what that starts, to the cores that it
computes on, where the writer's thread would stand in its way. None where the system does not
say."""


def beside_this_thread() -> frozenset[int]:
    """Those that the calling thread is not bound to; all if it is bound to none."""
    if CORES is None:
        return frozenset()
    return CORES - os.sched_getaffinity(0) or CORES
