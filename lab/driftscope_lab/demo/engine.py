"""Child process of the demonstration: one drafter in vLLM, with the probe started by environment,
or in the reference engine, which records into RUN itself.

python -m driftscope_lab.demo.engine vllm|reference DRAFTER PROMPTS RUN
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope_lab.demo import BATCH, CONTEXT, MAX_TOKENS, Item, K, requests
from driftscope_lab.trio import trio_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; `session` names the prompt where several requests ask the same in other
    words."""

    label: str
    token_ids: list[int]
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Limits of the engine and of every answer."""

    k: int
    max_tokens: int
    at_once: int
    context: int


def serve(target: Path, drafter: Path, requests: Sequence[Request], load: Load) -> None:
    """Answer every request greedily with the drafter; the probe, if it is switched on, records."""
    from vllm import LLM

    llm = LLM(
        model=str(target),
        dtype="float32",
        max_model_len=load.context,
        max_num_seqs=load.at_once,
        enforce_eager=True,
        speculative_config={
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": load.k,
        },
    )
    engine, waiting = llm.llm_engine, list(enumerate(requests))[::-1]
    while waiting or engine.has_unfinished_requests():
        # Use a closed loop, so that no request's time to first token includes queueing.
        while waiting and engine.get_num_unfinished_requests() < load.at_once:
            number, request = waiting.pop()
            prompt = {"prompt_token_ids": request.token_ids}
            engine.add_request(str(number), prompt, _sampling(request, load.max_tokens))
        engine.step()


def _sampling(request: Request, max_tokens: int) -> Any:
    from vllm import SamplingParams

    from driftscope_probes.engine import LABEL, SESSION

    names = {LABEL: request.label}
    if request.session is not None:
        names[SESSION] = request.session
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, extra_args=names)


def _in_vllm(target: Path, drafter: Path, items: Sequence[Item], _run: Path) -> None:
    asked = [Request(label=item.label, token_ids=item.token_ids) for item in items]
    load = Load(k=K, max_tokens=MAX_TOKENS, at_once=BATCH, context=CONTEXT)
    serve(target, drafter, asked, load)


def _in_reference(target: Path, drafter: Path, items: Sequence[Item], run: Path) -> None:
    import torch

    from driftscope.inspect.reference.engine import ReferenceRun

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    with ReferenceRun(run, target, drafter, k=K) as engine:
        for item in items:
            engine.generate(item.token_ids, max_tokens=MAX_TOKENS, label=item.label)


ENGINES = {"vllm": _in_vllm, "reference": _in_reference}


def main() -> None:
    """Answer each prompt in both conditions and record it."""
    name, drafter, prompts, run = sys.argv[1:]
    answer, weights = ENGINES[name], trio_path()
    answer(weights / "target", weights / drafter, requests(int(prompts)), Path(run))


if __name__ == "__main__":
    main()
