"""DFlash: one parallel pass of mask tokens over keys made from the target's hidden states."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from verification.zoo.eagle import WINDOW, on_trio, trio_config
from verification.zoo.kind import Kind, Shapes, layer, random_weights, save_model

TARGET_LAYERS = [0, 1, 2]
MASK_TOKEN = 5


def _dflash(folder: Path, **options: Any) -> None:
    config = {
        **trio_config(),
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "layer_types": ["full_attention"] * 2,
        "block_size": 8,
        "dflash_config": {
            "mask_token_id": MASK_TOKEN,
            "target_layer_ids": TARGET_LAYERS,
            **options,
        },
    }
    hidden, head = config["hidden_size"], config["head_dim"]
    shapes: Shapes = {
        "fc.weight": (hidden, hidden * len(TARGET_LAYERS)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        prefix = f"layers.{index}."
        shapes |= layer(config, prefix)
        shapes[f"{prefix}self_attn.q_norm.weight"] = (head,)
        shapes[f"{prefix}self_attn.k_norm.weight"] = (head,)
        if options.get("attention_sink_bias"):
            sinks = f"{prefix}self_attn.attention_sink_bias"
            shapes[sinks] = (config["num_attention_heads"],)
    save_model(folder, config, random_weights(shapes))


DFLASH = Kind(
    name="dflash",
    build=_dflash,
    options=lambda folder: on_trio("dflash", folder),
    runners=("v1", "v2"),
)
DFLASH_SINKS = Kind(
    name="dflash_window_sinks",
    build=partial(_dflash, use_swa=True, swa_window_size=WINDOW, attention_sink_bias=True),
    options=lambda folder: on_trio("dflash", folder),
    runners=("v1", "v2"),
)
