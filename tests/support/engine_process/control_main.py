"""Run a real engine whose probe is changed while it serves; print the probe's status each time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, engine, prompts

from driftscope_probes.control import METHOD
from driftscope_probes.engine import LABEL

CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("status", {}),
    ("stop", {}),
    ("start", {}),
    ("set", {"every": 2}),
    ("set", {"every": 1, "per_head": True}),
    ("set", {"per_head": False, "labels": ["a"]}),
    ("set", {"labels": ["nobody"]}),
    ("set", {"labels": []}),
    ("set", {"every": 0}),
    ("set", {"evry": 2}),
    ("explode", {}),
    ("set", {"budget": 0.5}),
)


def main() -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(**engine(Job(drafter="eagle31")), distributed_executor_backend="uni")
    params = [
        SamplingParams(
            temperature=0, max_tokens=9, ignore_eos=True, detokenize=False, extra_args=extra
        )
        for extra in ({LABEL: "a"}, {LABEL: "b"}, None)
    ]
    said = []
    for action, values in CHANGES:
        (answer,) = llm.collective_rpc(METHOD, args=(action,), kwargs=values)
        asked = [{"prompt_token_ids": ids} for ids in prompts(3)]
        outputs = llm.generate(asked, params, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        said.append({"answer": answer, "ids": [o.request_id for o in outputs], "tokens": tokens})
    Path(sys.argv[1]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
