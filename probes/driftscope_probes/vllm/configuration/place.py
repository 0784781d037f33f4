"""Reads a worker's place in its engine from vLLM's configuration."""

from __future__ import annotations

import os
import uuid
from typing import Any

from driftscope.trace.read.ranks import Place
from driftscope_probes.settings import RUN_ID


def place_in(config: Any) -> Place:
    """Return this worker's tensor-parallel rank, and its replica unless it is the first.

    `parallel_config.rank` also counts pipeline stages; the ranks of one stage are consecutive. A
    dense model's replicas know nothing of each other but their own index.
    """
    parallel = config.parallel_config
    size = getattr(parallel, "tensor_parallel_size", 1)
    replica = getattr(parallel, "data_parallel_index", 0)
    return Place(rank=getattr(parallel, "rank", 0) % size, replica=replica or None)


def is_last_stage(config: Any) -> bool:
    """Return whether this worker belongs to the last pipeline stage, which drafts."""
    parallel = config.parallel_config
    ranks, stages = (getattr(parallel, f"{kind}_parallel_size", 1) for kind in _WITHIN_REPLICA)
    return bool(getattr(parallel, "rank", 0) // ranks == stages - 1)


_WITHIN_REPLICA = ("tensor", "pipeline")


def run_id_of(config: Any) -> str:
    """Return the run id, shared by one engine's processes and unique per engine.

    The plugin's id is not enough, because one process may start several engines.
    """
    instance = str(getattr(config, "instance_id", "")).partition("_dp")[0]
    start = os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    return f"{start}-{instance}" if instance else start
