"""Drafters other than EAGLE-3, which SGLang serves: acceptance and timing are recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.sglang_process.job import Job, K

from verification.zoo.eagle import EAGLE1

ARCHITECTURE = "LlamaForCausalLMEagle"
"""SGLang's model of an EAGLE-1 drafter, which its checkpoints have to name."""


def eagle1(folder: Path) -> dict[str, Any]:
    """Build an EAGLE-1 drafter and its target, and return the engine's arguments for them."""
    EAGLE1.build(folder)
    config = folder / "drafter/config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "architectures": [ARCHITECTURE]})
    )
    return {
        "model_path": str(folder / "target"),
        "context_length": 512,
        "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": str(folder / "drafter"),
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }


NODES = 4
"""Nodes of an n-gram tree, its root included."""
JOBS = {
    "n-gram": Job(
        drafter="",
        probe={"EVERY": "1"},
        engine={"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NODES},
    ),
    "EAGLE-1": Job(drafter="", probe={"EVERY": "1"}, models=eagle1, largest_id=255),
}
