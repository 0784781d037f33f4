"""A target and an EAGLE-3.1 drafter of Llama-3.1-8B's shape: configurations only, dummy weights.

Acceptance is then meaningless; step times are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTEXT = 131_072
AUX_LAYERS = [2, 16, 29]
_SIZES = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def write(folder: Path) -> tuple[Path, Path]:
    """Write the config.json files of target and drafter; return their folders."""
    target: dict[str, Any] = {
        **_SIZES,
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
    }
    drafter: dict[str, Any] = {
        **_SIZES,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 32_000,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": AUX_LAYERS,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": AUX_LAYERS,
            "use_aux_hidden_state": True,
        },
    }
    paths = []
    for name, config in (("target", target), ("drafter", drafter)):
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config))
        paths.append(path)
    return paths[0], paths[1]
