"""One engine that answers one JSON line per line on stdin; started by engines.py."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1


def main() -> None:
    # Not to outlive whoever asks, however that ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    options = json.loads(sys.argv[1])
    # What vLLM prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM

    llm = LLM(**options)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _set(llm, asked["set"]) if "set" in asked else _measure(llm, asked)
        print(json.dumps(answer), file=answers, flush=True)


def _set(llm: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Change the sampler of the worker's recorder; what it says of itself."""

    def apply(worker: Any) -> dict[str, Any]:
        from driftscope_probes.vllm.attach import recorder_of

        runner = worker.model_runner
        held = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
        recorder = recorder_of(held)
        if recorder is None:
            raise RuntimeError("the probe is not attached")
        sampler = recorder.sampler
        if wanted.get("stop"):
            sampler.stop()
        else:
            sampler.start()
            sampler.set(every=wanted.get("every"), budget=wanted.get("budget"))
        costs = sampler.costs
        return {
            "rate": sampler.rate,
            "overhead": sampler.overhead,
            "step_s": costs.step_s,
            "recorded_s": costs.recorded_s,
            "passed_s": costs.passed_s,
        }

    found: dict[str, Any] = llm.collective_rpc(apply)[0]
    return found


def _measure(llm: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Seconds per output token after the first, over the batch; and output tokens per second of
    the whole call, whose prompts are in the prefix cache. Medians of the calls."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids in ask["prompts"]]

    def timed(tokens: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    timed(1)  # what waits for the next message has gone to sleep
    calls = [(timed(1), timed(ask["tokens"])) for _ in range(ask["calls"])]
    return {
        "tpot_s": statistics.median(whole - first for first, whole in calls) / (ask["tokens"] - 1),
        "tokens_per_s": len(prompts) * ask["tokens"] / statistics.median(w for _, w in calls),
    }


if __name__ == "__main__":
    main()
