"""Run a real engine whose probe is changed while it serves; print the probe's status each time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.engine_process.job import Job, engine, prompts

from driftscope.trace.control import Change
from driftscope_probes.control import change_run
from driftscope_probes.engine import LABEL

CHANGES = (
    Change(every=1),
    Change(recording=False),
    Change(recording=True),
    Change(every=2),
    Change(every=1, per_head=True),
    Change(per_head=False, labels=("a",)),
    Change(labels=("nobody",)),
    Change(labels=()),
    Change(budget=0.5),
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
    run = Path(os.environ["DRIFTSCOPE_TRACE"])
    for change in CHANGES:
        answers = change_run(run, change)
        (answer,) = (one for one in answers if one["source"].startswith("worker"))
        asked = [{"prompt_token_ids": ids} for ids in prompts(3)]
        outputs = llm.generate(asked, params, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        said.append({"answer": answer, "ids": [o.request_id for o in outputs], "tokens": tokens})
    Path(sys.argv[1]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
