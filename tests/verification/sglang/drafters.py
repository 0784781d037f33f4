"""Drafters other than EAGLE-3, which SGLang serves: EAGLE-1, a head for multi-token prediction,
and, without their inside, draft models and n-grams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import eagle1_drafter, mtp_checkpoint
from support.sglang_process.job import Job, K

from driftscope_lab.trio import trio_path
from verification.sglang.truth import RECORD

ARCHITECTURE = "LlamaForCausalLMEagle"
"""SGLang's model of an EAGLE-1 drafter, which its checkpoints have to name."""


def eagle1(folder: Path) -> dict[str, Any]:
    """Build an EAGLE-1 drafter of the shipped target, and return the engine's arguments for it.

    SGLang's `fc` has a bias, whose numbers are random if the file has none: here they are zero.
    """
    path = eagle1_drafter(folder / "drafter")
    config, weights = path / "config.json", path / "model.safetensors"
    fields = {**json.loads(config.read_text()), "architectures": [ARCHITECTURE]}
    config.write_text(json.dumps(fields))
    save_file({**load_file(weights), "fc.bias": torch.zeros(fields["hidden_size"])}, weights)
    return {
        "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": str(path),
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }


def eagle1_without_bias(folder: Path) -> dict[str, Any]:
    """Build the same without the bias of `fc`."""
    arguments = eagle1(folder)
    weights = folder / "drafter" / "model.safetensors"
    state = {name: each for name, each in load_file(weights).items() if name != "fc.bias"}
    save_file(state, weights)
    return arguments


def mimo_head(folder: Path) -> dict[str, Any]:
    """Build a checkpoint of MiMo that drafts for itself, and return the engine's arguments."""
    return {
        "model_path": str(mtp_checkpoint(folder / "target", normed=True)),
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": K,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": K + 1,
    }


def draft_model(_: Path) -> dict[str, Any]:
    """Return the engine's arguments for the target as its own draft model."""
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(trio_path() / "target"),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }


NODES = 4
"""Nodes of an n-gram tree, its root included."""
JOBS = {
    "n-gram": Job(
        drafter="",
        probe={"EVERY": "1"},
        engine={"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": NODES},
    ),
    "draft model": Job(drafter="", probe=RECORD, models=draft_model),
    "EAGLE-1": Job(drafter="", probe=RECORD, models=eagle1),
    "MTP, MiMo": Job(drafter="", probe=RECORD, models=mimo_head),
    "EAGLE-1 without a bias": Job(drafter="", probe=RECORD, models=eagle1_without_bias),
}
