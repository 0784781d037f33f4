"""Run one real vLLM engine in a separate process: read a job as JSON, write its results."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.killed_thread import kill

END_S = 60.0
KILL_WRITER = "TEST_KILL_WRITER"
"""Environment variable under which the writer's thread is killed as soon as it runs."""


def _kill_writer() -> None:
    """End the writer's thread from outside, at whatever line it is. Only this imports driftscope,
    which some starts break on purpose."""
    from driftscope.trace.writer import NAME

    while not (found := [thread for thread in threading.enumerate() if thread.name == NAME]):
        time.sleep(0.01)
    for thread in found:
        kill(thread)


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from vllm import LLM

    if os.environ.get(KILL_WRITER):
        threading.Thread(target=_kill_writer, daemon=True).start()
    llm = LLM(**job["llm"])
    batches = [_run(llm, batch) for batch in job["batches"]]
    result.write_text(json.dumps({"batches": batches, "metrics": _spec_decode(llm)}))
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1":
        # Otherwise vLLM kills its processes 5 s after the end, whatever they are doing: too early
        # on a machine that is busy with other engines.
        llm.llm_engine.engine_core.shutdown(timeout=END_S)


def _run(llm: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Generate for a batch; `size` prompts at a time."""
    from vllm import SamplingParams

    params = SamplingParams(**batch["sampling"])
    outputs, size, start = [], batch["size"], time.perf_counter()
    for first in range(0, len(batch["prompts"]), size):
        prompts = [{"prompt_token_ids": ids} for ids in batch["prompts"][first : first + size]]
        outputs += llm.generate(prompts, params, use_tqdm=False)
    return {
        "seconds": time.perf_counter() - start,
        "requests": [
            {"id": o.request_id, "token_ids": list(o.outputs[0].token_ids), "spec": _per_request(o)}
            for o in outputs
        ],
    }


def _per_request(output: Any) -> Any:
    """Return vLLM's own per-request record of speculation, if this version has one."""
    metrics = getattr(output, "spec_decode_metrics", None)
    if metrics is None:
        metrics = getattr(output.outputs[0], "spec_decode_metrics", None)
    if metrics is None:
        return None
    if dataclasses.is_dataclass(metrics) and not isinstance(metrics, type):
        return dataclasses.asdict(metrics)
    return {k: getattr(metrics, k) for k in getattr(metrics, "__slots__", vars(metrics))}


def _spec_decode(llm: Any) -> dict[str, Any]:
    """Return vLLM's counters of speculation."""
    found = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            values = getattr(metric, "values", None)
            found[metric.name] = metric.value if values is None else list(values)
    return found


if __name__ == "__main__":
    main()
