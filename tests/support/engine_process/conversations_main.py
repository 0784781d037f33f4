"""Run a real engine that is asked the same prompts twice, and to continue its own answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, engine, prompts

from driftscope_probes.engine import PAIR, SESSION

PROMPTS = 3


def main() -> None:
    from vllm import LLM, SamplingParams

    options = {**engine(Job(drafter="eagle31")), "skip_tokenizer_init": False}
    llm = LLM(**options, distributed_executor_backend="uni")

    def ask(asked: list[list[int]], session: str) -> list[Any]:
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=14,
                ignore_eos=True,
                skip_special_tokens=False,
                spaces_between_special_tokens=False,
                extra_args={SESSION: session, PAIR: f"question {at}"},
            )
            for at in range(len(asked))
        ]
        whole = [{"prompt_token_ids": ids} for ids in asked]
        return list(llm.generate(whole, params, use_tqdm=False))

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
    Path(sys.argv[1]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
