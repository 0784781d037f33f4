"""The inspection of the prompts that engines of tests are asked, and the rounds that it covers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.command import run_command
from support.engine_process.job import PROMPTS, K, Outcome, prompts

from driftscope.inspect.reference.config import EOS_ID
from driftscope.inspect.trial.target import ANSWER_TOKENS
from driftscope.trace.reader import read_trace
from driftscope_lab.trio import CONDITIONS, load_prompts

ENDED = {"max_tokens": ANSWER_TOKENS, "ignore_eos": False, "stop_token_ids": [EOS_ID]}
"""How an engine is asked for the same answers. Without a tokenizer it knows no end token."""


def inspected_by_command(
    drafter: Path, target: Path, folder: Path, count: int = PROMPTS
) -> dict[str, Any]:
    """Return the document of `driftscope inspect --json`; the prompts are written to `folder`."""
    path = folder / "prompts.jsonl"
    texts = [p.text(CONDITIONS[at % 2]) for at, p in enumerate(load_prompts()[:count])]
    rows = [json.dumps({"id": at, "body": {"prompt": text}}) for at, text in enumerate(texts)]
    path.write_text("\n".join(rows))
    options = ["--target", target, "--prompts", path, "--k", K, "--json"]
    done = run_command("inspect", drafter, *options, warned="ignore")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def served_length(outcome: Outcome) -> float:
    """Return the acceptance length of the rounds whose K drafts all lie within the answer. An
    inspection makes no others, because it knows the target's tokens up to the answer's end only.

    Tokens that a last round accepts past the end of its answer are no tokens of the request.
    """
    asked = zip(prompts(outcome.job.requests), outcome.tokens(), strict=True)
    ends = [len(prompt) + len(answer) for prompt, answer in asked]
    lengths = [
        row["accepted"] + 1
        for row in read_trace(outcome.run).verify.to_pylist()
        if row["verified"] and row["position"] + 1 + K < ends[int(row["request"].partition("-")[0])]
    ]
    return sum(lengths) / len(lengths) if lengths else 1.0
