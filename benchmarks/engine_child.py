"""One engine that answers one JSON line per request on stdin; started by overhead.py."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    options = json.loads(sys.argv[1])
    # What vLLM prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM

    llm = LLM(**options)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_measure(llm, json.loads(line))), file=answers, flush=True)


def _measure(llm: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Seconds per output token after the first, over the batch."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids in ask["prompts"]]

    def timed(max_tokens: int) -> tuple[float, list[list[int]]]:
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]

    prefill_s, _ = timed(1)
    total_s, tokens = timed(ask["max_tokens"])
    return {"tpot_s": (total_s - prefill_s) / (ask["max_tokens"] - 1), "tokens": tokens}


if __name__ == "__main__":
    main()
