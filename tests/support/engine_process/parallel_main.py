"""A real vLLM engine of several processes, run like engine_main.py's.

Data-parallel replicas are behind vLLM's own load balancer. Scheduling is asynchronous, as on a GPU,
if a job requests it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from support.engine_process import engine_main
from support.engine_process.situations_main import keep_async_scheduling


async def replicas(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Send all prompts of a batch at once; vLLM distributes them."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["llm"]))

    async def one(name: str, ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        last = None
        async for output in engine.generate(
            {"prompt_token_ids": ids}, SamplingParams(**sampling), name
        ):
            last = output
        assert last is not None
        return {"id": name, "token_ids": list(last.outputs[0].token_ids), "spec": None}

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


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    if job["llm"].get("async_scheduling"):
        keep_async_scheduling()
    if job["llm"].get("data_parallel_size", 1) == 1:
        engine_main.main()
        return
    found = asyncio.run(replicas(job))
    result.write_text(json.dumps({"batches": found, "metrics": {}}))


if __name__ == "__main__":
    main()
