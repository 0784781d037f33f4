"""One checkpoint and the same prompts in vLLM and in SGLang, recorded by both."""

from __future__ import annotations

from pathlib import Path

from support.engine_process import job as vllm
from support.sglang_process import job as sglang

REQUESTS = 8
RECORD = {"TOKEN_IDS": "1", "EVERY": "1", "PROMPT_SALT": "two engines"}
"""With one salt, both engines give a prompt the same digest."""


def in_vllm(drafter: str, folder: Path) -> vllm.Outcome:
    """Return the outcome of vLLM's V1 runner; `drafter`: the name of a shipped one, or a path."""
    speculation = {
        "method": "eagle3",
        "model": str(vllm.trio_path() / drafter),
        "num_speculative_tokens": sglang.K,
    }
    job = vllm.Job(
        drafter=drafter,
        probe=RECORD,
        requests=REQUESTS,
        sizes=(REQUESTS,),
        llm={"speculative_config": speculation},
        sampling={"max_tokens": sglang.MAX_TOKENS},
    )
    return vllm.run_job(job, folder)


def in_sglang(drafter: str, folder: Path) -> sglang.Outcome:
    """Return the outcome of SGLang with a shipped drafter, its captured layers renumbered."""
    job = sglang.Job(drafter=drafter, probe=RECORD, requests=REQUESTS, sizes=(REQUESTS,))
    return sglang.run_job(job, folder)
