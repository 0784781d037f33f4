"""One engine that answers each JSON line on stdin with one line; started by engines.py.

With the engine core in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0) each step can be timed, and
driftscope's hooks on vLLM can be removed and installed between two steps.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.turns import ABSENT, AGAIN, SETTINGS, Span, Turns, losses

PR_SET_PDEATHSIG = 1
FULL = 0.75
"""Smallest share of the batch that must decode for a step to count: requests end one after the
other."""
PREFILL = 4
"""First steps of a call, in which requests arrive and their prompts run."""
THREADS = "driftscope"
"""Prefix of the names of the probe's threads."""


def main() -> None:
    """Load the engine, and answer each line."""
    # Do not outlive the parent process, however it ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Output of vLLM must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM

    llm = LLM(**json.loads(sys.argv[1]))
    here = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    probe = Probe(llm) if here else None
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = probe.answer(asked) if probe else _answer(llm, asked)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(llm: Any, asked: dict[str, Any]) -> dict[str, Any]:
    if "set" in asked:
        found: dict[str, Any] = llm.collective_rpc(_set_in, args=(asked["set"],))[0]
        return found
    return _profile(llm, asked) if "profile" in asked else _measure(llm, asked)


def _set_in(worker: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    from driftscope_probes.vllm.attach import proposer_of, recorder_of

    recorder: Any = recorder_of(proposer_of(worker.model_runner))
    if recorder is None:
        raise RuntimeError("the probe is not attached")
    return _set(recorder.sampler, wanted)


def _set(sampler: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Change a recorder's sampler; return what it reports."""
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
            "rows": dearest[:60] + [row for row in dearest[60:] if row["device_s"]],
        }

    llm.collective_rpc(start)
    measured = _measure(llm, ask)
    found: dict[str, Any] = llm.collective_rpc(stop, args=(ask["profile"],))[0]
    return {**measured, **found}


def _params(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def _measure(llm: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds per output token after the first, over the batch, and the output tokens
    per second of the whole call, whose prompts are in the prefix cache."""
    prompts, tokens = [{"prompt_token_ids": ids} for ids in ask["prompts"]], ask["tokens"]

    def timed(tokens: int) -> float:
        start = time.perf_counter()
        llm.generate(prompts, _params(tokens), use_tqdm=False)
        return time.perf_counter() - start

    timed(1)  # wakes the worker, which sleeps between messages
    first_s, whole_s = timed(1), timed(tokens)
    return {
        "tpot_s": (whole_s - first_s) / (tokens - 1),
        "tokens_per_s": len(prompts) * tokens / whole_s,
    }


class Probe:
    """Driftscope's probe in this process, whose state changes between steps."""

    def __init__(self, llm: Any) -> None:
        from driftscope_probes.vllm.attach import proposer_of, recorder_of

        (runner,) = llm.collective_rpc(lambda worker: worker.model_runner)
        self._llm = llm
        self._recorder: Any = recorder_of(proposer_of(runner))
        self._hooks, self._absent = list(_hooks()), False
        if not self._hooks or self._recorder is None:
            raise SystemExit("no hook of driftscope in this process")
        self._flushes = _watched_flushes()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Measure with the probe in one state, or in all of them in turn."""
        return self._fixed(asked) if "state" in asked else self._turns(asked)

    def _be(self, state: str) -> None:
        """Switch the probe to a state. Absent: vLLM's methods are the original ones, and the
        drafter has no tap."""
        recorder, self._absent = self._recorder, state in (ABSENT, AGAIN)
        recorder._side_thread.join()
        recorder.taps.hooks.uninstall()
        for owner, name, hook in self._hooks:
            setattr(owner, name, hook.__wrapped__ if self._absent else hook)
        if not self._absent:
            _set(recorder.sampler, SETTINGS[state])

    def _turns(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Take complete rounds for `asked["seconds"]`, with the same prompts repeatedly."""
        turns, until = Turns(), time.perf_counter() + asked["seconds"]
        self._be(turns.state)
        while time.perf_counter() < until:
            for seconds, same_work in self._steps(asked):
                # A step without hooks leaves the previous value behind.
                recorded = not self._absent and self._recorder.recording_step
                if turns.step(seconds, alike=same_work, recorded=recorded):
                    self._be(turns.state)
        drawn = {state: asdict(sums) for state, sums in turns.drawn.items()}
        account = _set(self._recorder.sampler, {"budget": 0.01})
        return {"rounds": turns.rounds, "drawn": drawn, "account": account}

    def _fixed(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Measure with the probe in one state: the share of a core that driftscope's own threads
        take, and what the writer's flushes take of the steps."""
        self._be(asked["state"])
        self._flushes.clear()
        before, begun = _threads_s(), time.perf_counter()
        steps = []
        while time.perf_counter() < begun + asked["seconds"]:
            for took, same_work in self._steps(asked):
                now = time.perf_counter()
                if same_work:
                    steps.append((now - took, now))
        share = (_threads_s() - before) / (time.perf_counter() - begun)
        return {"threads": share, "flushes": losses(steps, list(self._flushes))}

    def _steps(self, asked: dict[str, Any]) -> Iterator[tuple[float, bool]]:
        """Yield the seconds of each step that answers the prompts, and whether the whole batch
        decoded in it. Work between two steps is not included."""
        engine, prompts = self._llm.llm_engine, asked["prompts"]
        for index, ids in enumerate(prompts):
            prompt = {"prompt_token_ids": ids}
            engine.add_request(f"{time.time_ns()}-{index}", prompt, _params(asked["tokens"]))
        for number in itertools.count():
            if not engine.has_unfinished_requests():
                return
            begun = time.perf_counter()
            outputs = engine.step()
            took = time.perf_counter() - begun
            ended = any(output.finished for output in outputs)
            full = len(outputs) >= FULL * len(prompts) and not ended
            yield took, full and number >= PREFILL


def _hooks() -> Iterator[tuple[type, str, Any]]:
    """Yield each wrapped method of vLLM: its class, its name, and the current function."""
    from driftscope_probes.guard import MARK
    from driftscope_probes.vllm.plugin import HOOKS

    for name in {hook.module for hooks in HOOKS.values() for hook in hooks}:
        for owner in tuple(vars(sys.modules.get(name, object)).values()):
            if isinstance(owner, type) and owner.__module__ == name:
                for attribute, value in tuple(vars(owner).items()):
                    if hasattr(value, MARK):
                        yield owner, attribute, value


def _watched_flushes() -> list[Span]:
    """Return a list to which start and end of each flush of the writer are added."""
    from driftscope.trace.writer import WriterThread

    flush, flushes = WriterThread._turns, list[Span]()

    def watched(writer: WriterThread) -> bool:
        begun = time.perf_counter()
        try:
            return flush(writer)
        finally:
            flushes.append((begun, time.perf_counter()))

    WriterThread._turns = watched  # type: ignore[method-assign]
    return flushes


def _threads_s() -> float:
    """Return the core seconds that the probe's threads have used so far."""
    ids = [t.native_id for t in threading.enumerate() if t.name.startswith(THREADS)]
    stats = [Path(f"/proc/self/task/{id_}/stat").read_text(encoding="ascii") for id_ in ids]
    ticks = sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
