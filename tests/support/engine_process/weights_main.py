"""Run a real engine that serves a LoRA adapter, and whose target gets other weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, engine, prompts

ADAPTER = "sql"
VERSION = "step-7"
REQUESTS = 6


def main() -> None:
    result, adapter, other = map(Path, sys.argv[1:4])
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    job = engine(Job(drafter="eagle31"))
    # On a CPU, vLLM 0.32 stops at a drafter that shares an embedding with LoRA.
    lora = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj", "v_proj"]}
    llm = LLM(**job, **lora, distributed_executor_backend="uni")
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in prompts(REQUESTS)]

    def ask(adapter: Any = None) -> list[list[int]]:
        outputs = llm.generate(asked, sampling, lora_request=adapter, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    answers = [ask(), ask(LoRARequest(ADAPTER, 1, str(adapter)))]
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(other)})
    llm.llm_engine.engine_core.set_weight_version(VERSION)
    answers += [ask(), ask()]
    result.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
