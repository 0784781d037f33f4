"""Run one real vLLM engine in a separate process: read a job as JSON, write its results.

Data-parallel replicas are behind vLLM's own load balancer.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import json
import os
import pkgutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.killed_thread import kill

END_S = 60.0
KILL_WRITER = "TEST_KILL_WRITER"
"""Environment variable under which the writer's thread is killed as soon as it runs."""
BREAK = "TEST_BREAK_PROBE"
"""Environment variable with a function of the probe, as module:name, and the exception that it
raises."""


def _kill_writer() -> None:
    """End the writer's thread from outside, at whatever line it is. Only this imports driftscope,
    which some starts break on purpose."""
    from driftscope.trace.writer import NAME

    while not (found := [t for t in threading.enumerate() if t.name == NAME and t.ident]):
        time.sleep(0.01)
    for thread in found:
        kill(thread)


def _break(function: str, error: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise getattr(builtins, error)(f"made by a test in {function}")

    module, _, name = function.partition(":")
    owner, _, attribute = name.rpartition(".")
    setattr(pkgutil.resolve_name(f"{module}:{owner}"), attribute, fail)


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    if os.environ.get(KILL_WRITER):
        threading.Thread(target=_kill_writer, daemon=True).start()
    if broken := os.environ.get(BREAK):
        _break(*broken.split(" "))
    if job["llm"].get("async_scheduling"):
        keep_async_scheduling()
    if job["llm"].get("data_parallel_size", 1) > 1:
        found = {"batches": asyncio.run(_replicas(job)), "metrics": {}}
        result.write_text(json.dumps(found))
        return
    from vllm import LLM

    llm = LLM(**job["llm"])
    batches = [_run(llm, batch) for batch in job["batches"]]
    result.write_text(json.dumps({"batches": batches, "metrics": spec_decode(llm)}))
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1":
        # Otherwise vLLM kills its processes 5 s after the end, whatever they are doing: too early
        # on a machine that is busy with other engines.
        llm.llm_engine.engine_core.shutdown(timeout=END_S)


def keep_async_scheduling() -> None:
    """Keep asynchronous scheduling, which vLLM disables on CPU, where it gains nothing; a GPU has
    it on. This is for tests of what the scheduler then sees."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def kept(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(kept)


def _run(llm: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Generate for a batch; `size` prompts at a time."""
    from vllm import SamplingParams

    params, outputs, size = SamplingParams(**batch["sampling"]), list[Any](), batch["size"]
    for first in range(0, len(batch["prompts"]), size):
        prompts = [{"prompt_token_ids": ids} for ids in batch["prompts"][first : first + size]]
        outputs += llm.generate(prompts, params, use_tqdm=False)
    return {
        "requests": [
            {"id": o.request_id, "token_ids": list(o.outputs[0].token_ids), "spec": per_request(o)}
            for o in outputs
        ],
    }


async def _replicas(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Send all prompts of a batch at once; vLLM distributes them."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["llm"]))

    async def one(name: str, ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        prompt, params = {"prompt_token_ids": ids}, SamplingParams(**sampling)
        answers = [answer async for answer in engine.generate(prompt, params, name)]
        return {"id": name, "token_ids": list(answers[-1].outputs[0].token_ids)}

    try:
        return [
            {
                "requests": await asyncio.gather(
                    *(one(str(i), ids, b["sampling"]) for i, ids in enumerate(b["prompts"]))
                )
            }
            for b in job["batches"]
        ]
    finally:
        engine.shutdown()


def per_request(output: Any) -> Any:
    """Return vLLM's own per-request record of speculation, if this version has one."""
    metrics = getattr(output, "spec_decode_metrics", None)
    if metrics is None:
        metrics = getattr(output.outputs[0], "spec_decode_metrics", None)
    if metrics is None:
        return None
    if dataclasses.is_dataclass(metrics) and not isinstance(metrics, type):
        return dataclasses.asdict(metrics)
    return {k: getattr(metrics, k) for k in getattr(metrics, "__slots__", vars(metrics))}


def spec_decode(llm: Any) -> dict[str, Any]:
    """Return vLLM's counters of speculation."""
    found = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            values = getattr(metric, "values", None)
            found[metric.name] = metric.value if values is None else list(values)
    return found


if __name__ == "__main__":
    main()
