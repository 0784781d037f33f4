"""The inspection of the prompts that engines of tests are asked, and the rounds that it covers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.command import run_command
from support.engine_process.job import PROMPTS, K, Outcome, prompts

from driftscope.trace.reader import read_trace
from driftscope_lab.trio import CONDITIONS, load_prompts


def inspected(drafter: Path, target: Path, folder: Path) -> dict[str, Any]:
    """Return the document of `driftscope inspect --json`; the prompts are written to `folder`."""
    path = folder / "prompts.jsonl"
    texts = [p.text(CONDITIONS[at % 2]) for at, p in enumerate(load_prompts()[:PROMPTS])]
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
    trace = read_trace(outcome.run)
    ends = {row["request"]: _end(row["request"], outcome) for row in trace.verify.to_pylist()}
    lengths = [
        row["accepted"] + 1
        for row in trace.verify.to_pylist()
        if row["verified"] and row["position"] + 1 + K < ends[row["request"]]
    ]
    return sum(lengths) / len(lengths) if lengths else 1.0


def _end(request: str, outcome: Outcome) -> int:
    """Return the number of tokens of a request, prompt and answer."""
    at = int(request.partition("-")[0])
    return len(prompts(outcome.job.requests)[at]) + len(outcome.tokens()[at])
