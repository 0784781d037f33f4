"""The run directory of a replay."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import TraceError
from driftscope.trace.format.manifest import CLIENT, MANIFEST, Manifest, Model
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter
from driftscope.trace.write.writer_options import WriterOptions
from driftscope.version import __version__
from driftscope.vocabulary import SINK_DEFAULT, Strategy
from driftscope.workloads.client.machine_resources import Sampler

QUEUE_ROWS = 1 << 20
"""Queue size of the writer, in rows: more than any plan has, because a sender may not lose a
row."""


def new_run_id() -> str:
    """Return a unique run id; its first digits are part of the requests' ids."""
    return uuid.uuid4().hex


def manifest_of(
    run_id: str, facts: Mapping[str, Any], workload: Mapping[str, Any], notes: tuple[str, ...]
) -> Manifest:
    """Return a manifest that describes the workload and the server; fields that only an engine
    knows are empty."""
    unknown = {"architecture": "", "config_digest": "", "dtype": ""}
    return Manifest(
        run_id=run_id,
        created_s=time.time(),
        driftscope_version=__version__,
        engine=CLIENT,
        engine_version=str(facts.get("version") or ""),
        runner=CLIENT,
        mode="",
        recording=CLIENT,
        method="",
        k=0,
        target=Model(name=str(facts.get("model") or ""), **unknown),
        drafter=Model(name="", **unknown),
        norm_flags={},
        drafter_layers=0,
        attention_backend="",
        kv_cache_dtype="",
        attention_strategy=Strategy.NONE,
        sink_tokens=0,
        sink_source=SINK_DEFAULT,
        notes=notes,
        workload={"server": dict(facts), **workload},
    )


def open_run(run: Path, manifest: Manifest) -> TraceWriter:
    """Create the run directory `run`; raises TraceError when it already holds a run."""
    if (run / MANIFEST).exists():
        raise TraceError(f"{run}: already holds a run; give -o a new directory")
    create_run(run, manifest)
    source = f"{CLIENT}-{os.getpid()}"
    return TraceWriter(
        run, source=source, options=WriterOptions(queue_items=QUEUE_ROWS, sampler=Sampler(source))
    )
