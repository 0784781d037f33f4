"""Run one real SGLang engine in a separate process: read a job as JSON, write its results."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

SETTLE_S = 3.0
"""Time for the writers' threads to write what they have: SGLang kills its processes at the end."""


def main() -> None:
    job, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**job["engine"])
    batches = [_run(engine, batch) for batch in job["batches"]]
    time.sleep(SETTLE_S)
    result.write_text(json.dumps({"batches": batches}))
    engine.shutdown()


def _run(engine: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Generate for a batch, `size` prompts at a time."""
    outputs, size, start = [], batch["size"], time.perf_counter()
    for first in range(0, len(batch["prompts"]), size):
        prompts = batch["prompts"][first : first + size]
        sampling = [
            {**batch["sampling"], **own} for own in batch["own"][first : first + len(prompts)]
        ]
        outputs += engine.generate(input_ids=prompts, sampling_params=sampling)
    return {
        "seconds": time.perf_counter() - start,
        "requests": [
            {"token_ids": list(output["output_ids"]), "meta": output["meta_info"]}
            for output in outputs
        ],
    }


if __name__ == "__main__":
    main()
