"""One engine that answers each JSON line on stdin with one line; started by engines.py."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

PR_SET_PDEATHSIG = 1


def serve(start: Callable[[Any], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Load the engine, and answer each line with what `start(engine)` returns for it."""
    # Do not outlive the parent process, however it ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Output of vLLM must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM

    answer = start(LLM(**json.loads(sys.argv[1])))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _answer(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    if "set" in asked:
        return _set(llm, asked["set"])
    if "limit" in asked:
        return _generate(llm, asked)
    return _profile(llm, asked) if "profile" in asked else _measure(llm, asked)


def _generate(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the greedy answers to all prompts at once, of `limit` tokens at most, the seconds
    until the last, and how many chains and, by depth, drafts of them were accepted meanwhile."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=asked["limit"], detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    before, start = _accepted(llm), time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds, after = time.perf_counter() - start, _accepted(llm)
    return {
        "seconds": seconds,
        "ids": [list(output.outputs[0].token_ids) for output in outputs],
        "accepted": [new - old for new, old in zip(after, before, strict=True)],
    }


def _accepted(llm: Any) -> list[int]:
    """Return the number of chains so far, then that of accepted drafts by depth; [] without."""
    found = {
        metric.name.removeprefix("vllm:spec_decode_num_"): metric for metric in llm.get_metrics()
    }
    if "drafts" not in found:
        return []
    return [found["drafts"].value, *found["accepted_tokens_per_pos"].values]


def _set(llm: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Change the sampler of the worker's recorder; return what the sampler reports."""

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


def _profile(llm: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Profile the worker while it answers, leave its timeline in the file `ask["profile"]`, and
    return the times of the most expensive kernels and host functions, in seconds, with counts."""

    def start(worker: Any) -> None:
        import torch

        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        worker._driftscope_profile = torch.profiler.profile(activities=kinds)
        worker._driftscope_profile.start()

    def stop(worker: Any, path: str) -> dict[str, Any]:
        profile = worker._driftscope_profile
        profile.stop()
        profile.export_chrome_trace(path)
        rows = [
            {
                "name": average.key[:120],
                "count": average.count,
                "device_s": getattr(average, "self_device_time_total", 0.0) / 1e6,
                "host_s": average.self_cpu_time_total / 1e6,
            }
            for average in profile.key_averages()
        ]
        dearest = sorted(rows, key=lambda row: -max(row["device_s"], row["host_s"]))
        return {
            "device_s": sum(row["device_s"] for row in rows),
            "launches": sum(row["count"] for row in rows if row["name"].startswith("cu")),
            "rows": dearest[:60],
        }

    llm.collective_rpc(start)
    measured = _measure(llm, ask)
    found: dict[str, Any] = llm.collective_rpc(stop, args=(ask["profile"],))[0]
    return {**measured, **found}


def _measure(llm: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds per output token after the first, over the batch, and the output tokens
    per second of the whole call, whose prompts are in the prefix cache. Both are medians over the
    calls."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids in ask["prompts"]]

    def timed(tokens: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    timed(1)  # wakes the worker, which sleeps between messages
    calls = [(timed(1), timed(ask["tokens"])) for _ in range(ask["calls"])]
    return {
        "tpot_s": statistics.median(whole - first for first, whole in calls) / (ask["tokens"] - 1),
        "tokens_per_s": len(prompts) * ask["tokens"] / statistics.median(w for _, w in calls),
    }


if __name__ == "__main__":
    serve(lambda llm: partial(_answer, llm))
