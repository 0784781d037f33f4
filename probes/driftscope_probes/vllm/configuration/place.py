"""Reads off vLLM's configuration where in an engine a worker stands."""

from __future__ import annotations

import os
import uuid
from typing import Any

from driftscope.trace.read.ranks import Place
from driftscope_probes.base.settings import RUN_ID


def place_in(config: Any) -> Place:
    """This worker's tensor-parallel rank, and its replica where it is not the first.

    `parallel_config.rank` counts pipeline stages too, ranks of a stage first. A dense model's
    replicas all believe to be alone but for their index.
    """
    parallel = config.parallel_config
    size = getattr(parallel, "tensor_parallel_size", 1)
    replica = getattr(parallel, "data_parallel_index", 0)
    return Place(rank=getattr(parallel, "rank", 0) % size, replica=replica or None)


def is_last_stage(config: Any) -> bool:
    """Whether this worker is of the last pipeline stage, the one that drafts."""
    parallel = config.parallel_config
    ranks, stages = (getattr(parallel, f"{kind}_parallel_size", 1) for kind in _WITHIN_REPLICA)
    return bool(getattr(parallel, "rank", 0) // ranks == stages - 1)


_WITHIN_REPLICA = ("tensor", "pipeline")


def run_id_of(config: Any) -> str:
    """The same in every process of one engine, and of another engine another.

    The plugin's id alone would not do: one process may start several engines.
    """
    instance = str(getattr(config, "instance_id", "")).partition("_dp")[0]
    start = os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    return f"{start}-{instance}" if instance else start
