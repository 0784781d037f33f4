"""Scenes of real engines, each in a process of its own: `run_scene` returns what one told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support.engine_process.job import (
    CORES,
    ENGINE_TIMEOUT_S,
    Job,
    engine,
    environment,
    forks,
    prompts,
)

from driftscope.trace.control import ProbeChange
from driftscope.trace.writer import FLUSH_S
from driftscope_probes.control import change_run
from driftscope_probes.engine import LABEL, PAIR, SESSION

CHANGES = (
    ProbeChange(every=1),
    ProbeChange(recording=False),
    ProbeChange(recording=True),
    ProbeChange(every=2),
    ProbeChange(every=1, labels=("a",)),
    ProbeChange(labels=("nobody",)),
    ProbeChange(labels=()),
    ProbeChange(budget=0.5),
)
PROMPTS = 3
WHOLE, ABORTED, RUNNING = "whole", "aborted", "running"
TOKENS = {WHOLE: 12, ABORTED: 10, RUNNING: 30}
"""Tokens of each request: its limit, those after which it is aborted, and those after which the
engine may end."""
SHUTDOWN, SIGTERM, EXIT, KILLED = "shutdown", "sigterm", "exit", "killed"
END_S = 60.0
ADAPTER, VERSION, REQUESTS = "sql", "step-7", 6


def run_scene(
    scene: str, job: Job, folder: Path, *words: object, core: str = CORES[0], survives: bool = True
) -> Any:
    """Run a scene of `SCENES` in a process with the job's environment; its run is in `folder`."""
    folder.mkdir(exist_ok=True)
    log, told = folder / "log.txt", folder / "told.json"
    arguments = [scene, str(told), *map(str, words)]
    env = environment(job, folder, core)
    code = forks(job.runner).run(Path(__file__), arguments, env, log, ENGINE_TIMEOUT_S)
    assert (code == 0) is survives, log.read_text(errors="replace")[-4000:]
    return json.loads(told.read_text())


def _engine(**more: Any) -> Any:
    from vllm import LLM

    return LLM(**{**engine(Job(drafter="eagle31")), **more}, distributed_executor_backend="uni")


def _sampling(**more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, ignore_eos=True, **more)


def _with_text(**more: Any) -> Any:
    return _sampling(skip_special_tokens=False, spaces_between_special_tokens=False, **more)


def _asked(ids: list[list[int]]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": token} for token in ids]


def control(told: Path) -> None:
    """Change the probe while it serves, and tell its status each time."""
    llm = _engine()
    params = [
        _sampling(max_tokens=9, detokenize=False, extra_args=extra)
        for extra in ({LABEL: "a"}, {LABEL: "b"}, None)
    ]
    said, run = [], Path(os.environ["DRIFTSCOPE_TRACE"])
    for change in CHANGES:
        answers = change_run(run, change)
        (answer,) = (one for one in answers if one["source"].startswith("worker"))
        outputs = llm.generate(_asked(prompts(PROMPTS)), params, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        said.append({"answer": answer, "ids": [o.request_id for o in outputs], "tokens": tokens})
    told.write_text(json.dumps(said))


def conversations(told: Path) -> None:
    """Ask the same prompts twice, then have the first answers continued; tell ids and texts."""
    llm = _engine(skip_tokenizer_init=False)

    def ask(asked: list[list[int]], session: str) -> list[Any]:
        params = [
            _with_text(max_tokens=14, extra_args={SESSION: session, PAIR: f"question {at}"})
            for at in range(len(asked))
        ]
        return list(llm.generate(_asked(asked), params, use_tqdm=False))

    first = prompts(PROMPTS)
    answers = ask(first, "a")
    again = ask(first, "b")
    turns = [
        [*ids, *output.outputs[0].token_ids, *ids[:5]]
        for ids, output in zip(first, answers, strict=True)
    ]
    second = ask(turns, "a")
    said = [
        [(output.request_id, output.outputs[0].text) for output in outputs]
        for outputs in (answers, again, second)
    ]
    told.write_text(json.dumps(said))


def stopped(told: Path, way: str) -> None:
    """End with requests in flight: by a shutdown, by SIGTERM of the process, without either, or
    killed. Tell the token ids and the text that each request had when it was last seen."""
    llm = _engine(skip_tokenizer_init=False)
    told.write_text(json.dumps(_served(llm.llm_engine)))
    if way == SIGTERM:  # which vLLM's front end sends to the process of its engine core
        llm.llm_engine.engine_core.shutdown(timeout=END_S)
    elif way == SHUTDOWN:
        llm.llm_engine.engine_core.shutdown()
    elif way == KILLED:
        time.sleep(3 * FLUSH_S)
        os.kill(os.getpid(), signal.SIGKILL)


def _served(engine_: Any) -> dict[str, tuple[list[int], str]]:
    for name, prompt in zip(TOKENS, prompts(len(TOKENS)), strict=True):
        params = _with_text(max_tokens=TOKENS[WHOLE] if name == WHOLE else 300)
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


def weights(told: Path, adapter: str, other: str) -> None:
    """Serve a LoRA adapter, then other weights of the target; tell the answers."""
    from vllm.lora.request import LoRARequest

    # On a CPU, vLLM 0.32 stops at a drafter that shares an embedding with LoRA.
    llm = _engine(enable_lora=True, max_lora_rank=8, lora_target_modules=["q_proj", "v_proj"])
    sampling = _sampling(max_tokens=24, detokenize=False)

    def ask(lora: Any = None) -> list[list[int]]:
        asked = _asked(prompts(REQUESTS))
        outputs = llm.generate(asked, sampling, lora_request=lora, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    answers = [ask(), ask(LoRARequest(ADAPTER, 1, adapter))]
    llm.collective_rpc("reload_weights", kwargs={"weights_path": other})
    llm.llm_engine.engine_core.set_weight_version(VERSION)
    answers += [ask(), ask()]
    told.write_text(json.dumps(answers))


SCENES = {
    "control": control,
    "conversations": conversations,
    "stopped": stopped,
    "weights": weights,
}

if __name__ == "__main__":
    _, name, path, *words = sys.argv
    SCENES[name](Path(path), *words)
