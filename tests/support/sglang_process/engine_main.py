"""Run one real SGLang engine in a separate process: read a job as JSON, write its results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

ABORT_S = 0.3
"""Time until a request is aborted: its batch is sent, and the first request is not finished."""
SETTLE_S = 3.0
"""Time for the writers' threads to write what they have: SGLang kills its processes at the end."""


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**job["engine"])
    batches = []
    for batch in job["batches"]:
        if batches and job["weights"]:  # SGLang loads them into the drafter, too, if they fit
            engine.update_weights_from_disk(job["weights"])
        batches.append(_run(engine, batch))
    time.sleep(SETTLE_S)
    result.write_text(json.dumps({"batches": batches}))
    engine.shutdown()


def _run(engine: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Generate for a batch, `size` prompts at a time; or all at once, one of which is aborted."""
    if batch["abort"] is not None:
        return engine.loop.run_until_complete(_abort_one(engine, batch))
    outputs, size, start = [], batch["size"], time.perf_counter()
    for first in range(0, len(batch["prompts"]), size):
        prompts = batch["prompts"][first : first + size]
        sampling = [
            {**batch["sampling"], **own} for own in batch["own"][first : first + len(prompts)]
        ]
        outputs += engine.generate(input_ids=prompts, sampling_params=sampling)
    return {
        "seconds": time.perf_counter() - start,
        "requests": [
            {"token_ids": list(output["output_ids"]), "meta": output["meta_info"]}
            for output in outputs
        ],
    }


async def _abort_one(engine: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Send all prompts at once, and abort one while it is in the queue."""
    start = time.perf_counter()
    asked = [
        asyncio.ensure_future(
            engine.async_generate(input_ids=ids, sampling_params=batch["sampling"], rid=f"rid-{at}")
        )
        for at, ids in enumerate(batch["prompts"])
    ]
    await asyncio.sleep(ABORT_S)
    engine.tokenizer_manager.abort_request(rid=f"rid-{batch['abort']}")
    outputs = await asyncio.gather(*asked, return_exceptions=True)
    answered = [output for output in outputs if isinstance(output, dict)]
    return {
        "seconds": time.perf_counter() - start,
        "requests": [
            {"token_ids": list(answer.get("output_ids", ())), "meta": answer["meta_info"]}
            for answer in answered
        ],
    }


if __name__ == "__main__":
    main()
