"""Environment of an engine that is started to be recorded."""

from __future__ import annotations

import os
from pathlib import Path


def engine_environment(run: Path, core: int, cores: int) -> dict[str, str]:
    """Return the environment of the engine number `core` of `cores` that record at the same time
    into `run`: a core of its own if there are enough, and the V1 runner, which a CPU uses
    natively."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    env |= {
        "DRIFTSCOPE_TRACE": str(run.absolute()),
        "DRIFTSCOPE_STRICT": "1",
        # A short run, where every round counts.
        "DRIFTSCOPE_EVERY": "1",
        "DRIFTSCOPE_DISTANCE_EVERY": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    available = sorted(os.sched_getaffinity(0))
    if len(available) >= cores:
        env["VLLM_CPU_OMP_THREADS_BIND"] = str(available[core])
    return env
