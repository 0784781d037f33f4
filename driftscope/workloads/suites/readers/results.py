"""Prompts from other load generators' result files.

guidellm: `benchmarks[].requests.successful[]`, each with `request_args`, the posted body as JSON
text in today's versions, or `prompt` in older ones. `vllm bench serve --save-result
--save-detailed`: `input_lens` and `output_lens`, and no prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.boundary import strict_json
from driftscope.boundary.bounds import MAX_TOKENS
from driftscope.workloads.suites.filler_text import document

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English."""


def guidellm_rows(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a row for `prompt_of` per successful request; a prompt sent at several rates appears
    once."""
    seen = set()
    for benchmark in report["benchmarks"]:
        for request in (benchmark.get("requests") or {}).get("successful") or ():
            row = _guidellm_row(request)
            name = strict_json.dumps(row, sort_keys=True)
            if row is not None and name not in seen:
                seen.add(name)
                yield row


def _guidellm_row(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    sent = request.get("request_args")
    if isinstance(sent, str):
        try:
            sent = json.loads(sent)
        except ValueError:
            sent = None
    if isinstance(sent, dict):
        body = sent.get("body", sent)
        if isinstance(body, dict) and (body.get("messages") or body.get("prompt")):
            return {"body": body}
    prompt = request.get("prompt")
    return {"prompt": prompt} if isinstance(prompt, str) and prompt else None


def vllm_bench_rows(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield requests of the same lengths as those that were sent; their text is driftscope's
    own."""
    lengths = zip(result["input_lens"], result.get("output_lens") or (), strict=True)
    for number, (asked, answered) in enumerate(lengths):
        text = document(_tokens(asked) * CHARACTERS_PER_TOKEN, random.Random(number))
        message = {"role": "user", "content": text}
        yield {
            "id": f"as-long-as-{number}",
            "messages": [message],
            "max_tokens": max(_tokens(answered), 1),
        }


def _tokens(length: Any) -> int:
    """Return a length in tokens; raises ValueError for what no request can have."""
    if not isinstance(length, int | float) or not 0 <= length <= MAX_TOKENS:
        raise ValueError(f"a length of {length!r} tokens")
    return int(length)
