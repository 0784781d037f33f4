"""Run one real vLLM engine in this process and step it by hand, so that each run has its requests
at the same steps; read a job as JSON and write its results."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from support.engine_process.engine_main import keep_async_scheduling, per_request, spec_decode

from driftscope.trace.writer import FLUSH_S

LIVE = "-live"
"""Suffix of a run directory's name for its copy from before the engine's end."""


class Driver:
    """Adds a situation's requests when they are due, steps, aborts, and records the schedule."""

    def __init__(self, llm: Any) -> None:
        self._engine = llm.llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._schedules: list[dict[str, Any]] = []
        schedule = self._scheduler.schedule

        def noted(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._note(output)
            return output

        self._scheduler.schedule = noted
        executor = self._engine.engine_core.engine_core.model_executor
        take = executor.take_draft_token_ids

        def lost() -> Any:
            drafts = take()
            if drafts is not None and self._step in self._lose_drafts:
                drafts.draft_token_ids = [[] for _ in drafts.req_ids]
            return drafts

        executor.take_draft_token_ids = lost

    def run(self, situation: dict[str, Any]) -> dict[str, Any]:
        """Return outputs by name, in full, and the schedule of each step."""
        asks, k_changes = situation["asks"], dict(situation["k_changes"])
        self._schedules, self._lose_drafts = [], situation["lose_drafts"]
        self._found: dict[str, dict[str, Any]] = {}
        todo, aborts, self._step = list(asks), {}, 0
        while todo or self._engine.has_unfinished_requests():
            if self._step in k_changes:
                self._change_k(k_changes[self._step])
            for ask in [a for a in todo if a["at_step"] <= self._step]:
                todo.remove(ask)
                self._add(ask)
                aborts[ask["name"]] = ask["abort_after"]
            for output in self._engine.step():
                self._keep(output)
                if self._due(aborts.get(output.request_id), output):
                    self._engine.abort_request([output.request_id])
            self._step += 1
        return {"requests": self._found, "schedules": self._schedules}

    def _change_k(self, k: int) -> None:
        self._scheduler.dynamic_sd_lookup = [k] * len(self._scheduler.dynamic_sd_lookup)

    def _add(self, ask: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        sampling = dict(ask["sampling"])
        if "regex" in sampling:
            sampling["structured_outputs"] = StructuredOutputsParams(regex=sampling.pop("regex"))
        prompt = {"prompt_token_ids": ask["prompt"]}
        self._engine.add_request(ask["name"], prompt, SamplingParams(**sampling))
        for request in self._scheduler.requests.values():
            if request.structured_output_request is not None:
                _wait_for_grammar(request.structured_output_request)

    def _keep(self, output: Any) -> None:
        for one in output.outputs:
            self._found[f"{output.request_id}/{one.index}"] = {
                "token_ids": list(one.token_ids),
                "finish_reason": one.finish_reason,
                "cached": output.num_cached_tokens,
                "spec": per_request(output),
            }

    @staticmethod
    def _due(abort_after: int | None, output: Any) -> bool:
        return abort_after is not None and len(output.outputs[0].token_ids) >= abort_after

    def _note(self, output: Any) -> None:
        computed = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        admitted = {r.req_id for r in output.scheduled_new_reqs} | set(cached.resumed_req_ids)
        self._schedules.append(
            {
                "k": output.num_spec_tokens_to_schedule,
                "requests": {
                    name: {
                        "start": computed[name],
                        "count": count,
                        "places": len(output.scheduled_spec_decode_tokens.get(name, ())),
                        "known": self._scheduler.requests[name].num_tokens,
                        "admitted": name in admitted,
                    }
                    for name, count in output.num_scheduled_tokens.items()
                },
                "preempted": sorted(output.preempted_req_ids or ()),
            }
        )


def _wait_for_grammar(structured: Any) -> None:
    """Wait for the thread that compiles the grammar, so that the number of steps does not depend on
    time."""
    while structured.grammar is None:
        time.sleep(0.001)


def copy_streams() -> None:
    """Copy the run while the engine serves, in streams that are not sealed."""
    if run := os.environ.get("DRIFTSCOPE_TRACE"):
        time.sleep(2 * FLUSH_S)
        shutil.copytree(run, f"{run}{LIVE}")


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from vllm import LLM

    if job["llm"].get("async_scheduling"):
        keep_async_scheduling()

    llm = LLM(**job["llm"])
    driver = Driver(llm)
    batches = [
        {"name": situation["name"], **driver.run(situation)} for situation in job["situations"]
    ]
    copy_streams()
    result.write_text(json.dumps({"batches": batches, "metrics": spec_decode(llm)}))


if __name__ == "__main__":
    main()
