"""An engine in one process, whose probe changes between steps; it is asked like `engine_child`.

The engine core is called from here (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that each step can be
timed, and driftscope's hooks on vLLM can be removed and installed between two steps.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.engine_child import serve
from benchmarks.turns import ABSENT, AGAIN, EVERY, STOPPED, Span, Turns, losses
from driftscope.trace.writer import WriterThread

FULL = 0.75
"""Smallest share of the batch that must decode for a step to count: requests end one after the
other."""
PREFILL = 4
"""First steps of a call, in which requests arrive and their prompts run."""
THREADS = "driftscope"
"""Prefix of the names of the probe's threads."""
FLUSHES: list[Span] = []


class Probe:
    """Driftscope's probe in this process."""

    def __init__(self, llm: Any) -> None:
        from driftscope_probes.vllm.attach import proposer_of, recorder_of

        (runner,) = llm.collective_rpc(lambda worker: worker.model_runner)
        self._recorder: Any = recorder_of(proposer_of(runner))
        self._hooks, self._absent = list(_hooks()), False
        if not self._hooks or self._recorder is None:
            raise SystemExit("no hook of driftscope in this process")

    def be(self, state: str) -> None:
        """Switch the probe to a state. Absent: vLLM's methods are the original ones, and the
        drafter has no tap."""
        recorder, absent = self._recorder, state in (ABSENT, AGAIN)
        self._absent = absent
        recorder._side_thread.join()
        recorder.taps.hooks.uninstall()
        for owner, name, hook in self._hooks:
            setattr(owner, name, hook.__wrapped__ if absent else hook)
        if absent:
            return
        sampler = recorder.sampler
        if state == STOPPED:
            sampler.stop()
            return
        sampler.start()
        if state == EVERY:
            sampler.set(every=1)
        else:
            sampler.set(budget=0.01)

    @property
    def recorded(self) -> bool:
        """Whether the last step was recorded; a step without hooks leaves the previous value
        behind."""
        return not self._absent and self._recorder.recording_step

    def account(self) -> dict[str, float]:
        """Return what the sampler reports, and the rate that the budget allows."""
        sampler = self._recorder.sampler
        costs = sampler.costs
        sampler.set(budget=0.01)
        return {
            "step_s": costs.step_s,
            "recorded_s": costs.recorded_s,
            "passed_s": costs.passed_s,
            "rate": sampler.rate,
        }


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


def _start(llm: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    probe = Probe(llm)
    return lambda asked: (_fixed if "state" in asked else _turns)(llm, probe, asked)


def _turns(llm: Any, probe: Probe, asked: dict[str, Any]) -> dict[str, Any]:
    """Take complete rounds for `asked["seconds"]`, with the same prompts repeatedly."""
    turns, until = Turns(), time.perf_counter() + asked["seconds"]
    probe.be(turns.state)
    while time.perf_counter() < until:
        for seconds, alike in _steps(llm, asked):
            if turns.step(seconds, alike=alike, recorded=probe.recorded):
                probe.be(turns.state)
    drawn = {state: asdict(sums) for state, sums in turns.drawn.items()}
    return {"rounds": turns.rounds, "drawn": drawn, "account": probe.account()}


def _fixed(llm: Any, probe: Probe, asked: dict[str, Any]) -> dict[str, Any]:
    """Measure with the probe in one state: the share of a core that driftscope's own threads take,
    and what the writer's flushes take of the steps."""
    probe.be(asked["state"])
    FLUSHES.clear()
    before, begun = _threads_s(), time.perf_counter()
    steps = []
    while time.perf_counter() < begun + asked["seconds"]:
        for took, alike in _steps(llm, asked):
            now = time.perf_counter()
            if alike:
                steps.append((now - took, now))
    share = (_threads_s() - before) / (time.perf_counter() - begun)
    return {"threads": share, "flushes": losses(steps, list(FLUSHES))}


def _watch_flushes() -> None:
    """Record the start and end of each flush."""
    flush = WriterThread._turns

    def watched(scribe: WriterThread) -> bool:
        begun = time.perf_counter()
        try:
            return flush(scribe)
        finally:
            FLUSHES.append((begun, time.perf_counter()))

    WriterThread._turns = watched  # type: ignore[method-assign]


def _steps(llm: Any, asked: dict[str, Any]) -> Iterator[tuple[float, bool]]:
    """Yield the seconds of each step that answers the prompts, and whether the whole batch decoded
    in it. Work between two steps is not included."""
    from vllm import SamplingParams

    engine, prompts = llm.llm_engine, asked["prompts"]
    params = SamplingParams(
        temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False
    )
    for index, ids in enumerate(prompts):
        engine.add_request(f"{time.time_ns()}-{index}", {"prompt_token_ids": ids}, params)
    for number in itertools.count():
        if not engine.has_unfinished_requests():
            return
        begun = time.perf_counter()
        outputs = engine.step()
        took = time.perf_counter() - begun
        ended = any(output.finished for output in outputs)
        full = len(outputs) >= FULL * len(prompts) and not ended
        yield took, full and number >= PREFILL


def _threads_s() -> float:
    """Return the core seconds that the probe's threads have used so far."""
    ids = [t.native_id for t in threading.enumerate() if t.name.startswith(THREADS)]
    stats = [Path(f"/proc/self/task/{id_}/stat").read_text(encoding="ascii") for id_ in ids]
    ticks = sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _watch_flushes()
    serve(_start)
