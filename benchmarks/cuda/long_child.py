"""One engine with its traffic; started by long.py with the path of a job file. It writes its
results to the job's folder."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


async def client(engine: Any, number: int, job: dict[str, Any], until: float) -> Counter[str]:
    """Send one request after another, each with its own length, temperature and abort."""
    from vllm import SamplingParams

    chance, counts = random.Random(number), Counter[str]()
    while time.time() < until:
        name = f"{number}-{counts['requests']}"
        length, size = chance.choice(job["prompts"]), job["vocabulary"]
        ids = [chance.randrange(100, size) for _ in range(length)]
        tokens = chance.choice(job["outputs"])
        aborted = tokens > 1 and chance.random() < job["aborted_share"]
        temperature = chance.choice(job["temperatures"])
        params = SamplingParams(
            temperature=temperature, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        written = await request(engine, name, ids, params, tokens // 2 if aborted else None)
        counts.update(requests=1, aborted=int(aborted), prompt_tokens=length, output_tokens=written)
        counts[f"temperature {temperature}"] += 1
    return counts


async def request(
    engine: Any, name: str, ids: list[int], params: Any, abort_after: int | None
) -> int:
    """Return the number of generated tokens; the client disconnects after `abort_after` of them."""
    written = 0
    stream = engine.generate({"prompt_token_ids": ids}, params, name)
    async for output in stream:
        written = len(output.outputs[0].token_ids)
        if abort_after is not None and written >= abort_after:
            await stream.aclose()
            break
    return written


async def serve(folder: Path, job: dict[str, Any]) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**job["llm"]))
    (folder / "ready").touch()
    until = time.time() + job["seconds"]
    clients = [client(engine, i, job, until) for i in range(job["concurrency"])]
    total: Counter[str] = sum(await asyncio.gather(*clients), Counter())
    partial = folder / "done.partial"
    partial.write_text(json.dumps(dict(sorted(total.items()))))
    partial.rename(folder / "done")
    engine.shutdown()


def main() -> None:
    path = Path(sys.argv[1])
    asyncio.run(serve(path.parent, json.loads(path.read_text())))


if __name__ == "__main__":
    main()
