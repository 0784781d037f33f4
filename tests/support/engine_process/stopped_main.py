"""Run a real engine that ends with requests in flight: by a shutdown, by SIGTERM of its process,
without either, or killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, engine, prompts

from driftscope.trace.writer import FLUSH_S

WHOLE, ABORTED, RUNNING = "whole", "aborted", "running"
TOKENS = {WHOLE: 12, ABORTED: 10, RUNNING: 30}
"""Tokens of each request: its limit, those after which it is aborted, and those after which the
engine may end."""
SHUTDOWN, SIGTERM, EXIT, KILLED = "shutdown", "sigterm", "exit", "killed"
END_S = 60.0


def main() -> None:
    said, way = Path(sys.argv[1]), sys.argv[2]
    from vllm import LLM

    options = {**engine(Job(drafter="eagle31")), "skip_tokenizer_init": False}
    llm = LLM(**options, distributed_executor_backend="uni")
    said.write_text(json.dumps(_served(llm.llm_engine)))
    if way == SIGTERM:  # which vLLM's front end sends to the process of its engine core
        llm.llm_engine.engine_core.shutdown(timeout=END_S)
    elif way == SHUTDOWN:
        llm.llm_engine.engine_core.shutdown()
    elif way == KILLED:
        time.sleep(3 * FLUSH_S)
        os.kill(os.getpid(), signal.SIGKILL)


def _served(engine_: Any) -> dict[str, tuple[list[int], str]]:
    """Return the token ids and the text that each request had when it was last seen."""
    from vllm import SamplingParams

    for name, prompt in zip(TOKENS, prompts(len(TOKENS)), strict=True):
        params = SamplingParams(
            temperature=0,
            max_tokens=TOKENS[WHOLE] if name == WHOLE else 300,
            ignore_eos=True,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )
        engine_.add_request(name, {"prompt_token_ids": prompt}, params)
    seen: dict[str, tuple[list[int], str]] = {}
    while any(len(seen.get(name, ((), ""))[0]) < least for name, least in TOKENS.items()):
        for output in engine_.step():
            answer = output.outputs[0]
            seen[output.request_id] = list(answer.token_ids), answer.text
            if output.request_id == ABORTED and len(answer.token_ids) >= TOKENS[ABORTED]:
                engine_.abort_request([ABORTED])
    assert engine_.get_num_unfinished_requests() == 1
    return seen


if __name__ == "__main__":
    main()
