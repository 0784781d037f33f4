"""A LoRA adapter with random weights for a checkpoint, as peft writes it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK = 4
MODULES = ("q_proj", "v_proj")
SIZE = 0.1
"""Standard deviation of the weights: large enough for other answers."""


def write_adapter(folder: Path, model: Path) -> Path:
    """Write an adapter of the attention of `model` into `folder`."""
    random = torch.Generator().manual_seed(0)
    state = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(MODULES):
            rows, columns = weight.shape
            for part, shape in (("lora_A", (RANK, columns)), ("lora_B", (rows, RANK))):
                state[f"base_model.model.{module}.{part}.weight"] = SIZE * torch.randn(
                    shape, generator=random
                )
    folder.mkdir(parents=True)
    save_file(state, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": MODULES,
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
