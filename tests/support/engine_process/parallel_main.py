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


def gather_experts_on_cpu() -> None:
    """Give vLLM's CPU build the collectives by which replicas share a mixture of experts, which it
    lacks: 0.32.0 raises NotImplementedError. Processes that are forked from this one have them."""
    import torch
    from torch import distributed
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def all_gatherv(own: Any, part: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        if isinstance(part, list):
            return [all_gatherv(own, one, dim, sizes) for one in part]
        rows = sizes or [len(part)] * own.world_size
        padded = part.new_zeros(max(rows), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in rows]
        distributed.all_gather(parts, padded, group=own.device_group)
        return torch.cat([one[:n] for one, n in zip(parts, rows, strict=True)])

    def reduce_scatterv(own: Any, whole: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
        rows = sizes or [len(whole) // own.world_size] * own.world_size
        total = whole.clone()
        distributed.all_reduce(total, group=own.device_group)
        begin = sum(rows[: own.rank_in_group])
        return total[begin : begin + rows[own.rank_in_group]]

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv


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
    if job["llm"].get("enable_expert_parallel"):
        gather_experts_on_cpu()
    if job["llm"].get("data_parallel_size", 1) == 1:
        engine_main.main()
        return
    found = asyncio.run(replicas(job))
    result.write_text(json.dumps({"batches": found, "metrics": {}}))


if __name__ == "__main__":
    main()
