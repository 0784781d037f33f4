"""A process's part in a run: its place, its trace writer, and the end of that.

vLLM's processes finish in several ways.
"""

from __future__ import annotations

import multiprocessing.util
import os
import uuid
from typing import Any

from driftscope.trace.privacy import Pseudonyms
from driftscope.trace.ranks import Place
from driftscope.trace.writer import TraceWriter
from driftscope_probes.cores import CORES
from driftscope_probes.resources import sample
from driftscope_probes.settings import RUN_ID, Settings, request_key

CLOSE_PRIORITY = 100


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


def role_of(place: Place) -> str:
    """Its name among a run's sources, as `driftscope.trace.ranks` reads it."""
    replica = "" if place.replica is None else f".dp{place.replica}"
    return f"worker{place.rank}{replica}"


def run_id_of(config: Any) -> str:
    """The same in every process of one engine, and of another engine another.

    The plugin's id alone would not do: one process may start several engines.
    """
    instance = str(getattr(config, "instance_id", "")).partition("_dp")[0]
    start = os.environ.setdefault(RUN_ID, uuid.uuid4().hex[:12])
    return f"{start}-{instance}" if instance else start


def open_writer(settings: Settings, role: str) -> TraceWriter:
    """The writer of this process under `role`, such as "worker0".

    Closed by the seam's shutdown hook; failing that when the process ends: multiprocessing's
    children leave through os._exit, which runs finalizers but no atexit functions.
    Raises TraceError when the run directory cannot be written, ProbeError for a bad key.
    """
    writer = TraceWriter(
        settings.trace,
        source=f"{role}-{os.getpid()}",
        max_bytes=settings.max_mb << 20,
        sampler=lambda: sample(writer.source),
        cpus=CORES,
        pseudonyms=None if settings.identifiers else Pseudonyms(request_key()),
    )
    multiprocessing.util.Finalize(None, writer.close, exitpriority=CLOSE_PRIORITY)
    return writer
