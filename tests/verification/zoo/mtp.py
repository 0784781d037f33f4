"""Multi-token prediction: heads that are part of the target's own checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verification.zoo.eagle import WINDOW
from verification.zoo.kind import (
    BASE,
    HIDDEN,
    Kind,
    agreeing_weights,
    causal_lm,
    layer,
    lean_on_embedding,
    save_model,
)

DEPTHS = 3


def with_own_heads(folder: Path) -> dict[str, Any]:
    """Return options for a checkpoint that drafts for itself."""
    speculation = {"method": "mtp", "num_speculative_tokens": DEPTHS}
    return {"model": str(folder), "speculative_config": speculation}


def _mimo(folder: Path) -> None:
    config = {
        **BASE,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
    }
    head = "model.mtp_layers.0."
    shapes = {**causal_lm(config), **layer(config, head)}
    for name in [n for n in shapes if n.split(".")[-2] in ("q_proj", "k_proj", "v_proj")]:
        shapes[name.replace("weight", "bias")] = shapes[name][:1]
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        shapes[f"{head}{norm}.weight"] = (HIDDEN,)
    weights = agreeing_weights(shapes)
    weights[f"{head}input_proj.weight"] = lean_on_embedding(HIDDEN, embedding_first=False)
    save_model(folder, config, weights)


def _mimo_v2(folder: Path) -> None:
    config = {
        **BASE,
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "attention_bias": False,
        "layernorm_epsilon": BASE["rms_norm_eps"],
        "hybrid_layer_pattern": [0, 1],
        "swa_num_attention_heads": BASE["num_attention_heads"],
        "swa_num_key_value_heads": BASE["num_key_value_heads"],
        "swa_head_dim": BASE["head_dim"],
        "sliding_window_size": WINDOW,
        "add_swa_attention_sink_bias": True,
        "n_routed_experts": 1,
    }
    head = "model.mtp.layers.0."
    shapes = {
        **causal_lm(config),
        **layer(config, head),
        f"{head}eh_proj.weight": (HIDDEN, 2 * HIDDEN),
        **{f"{head}{norm}.weight": (HIDDEN,) for norm in ("enorm", "hnorm", "final_layernorm")},
        **{
            f"{prefix}self_attn.attention_sink_bias": (config["num_attention_heads"],)
            for prefix in ("model.layers.1.", head)
        },
    }
    shapes[f"{head}pre_mlp_layernorm.weight"] = shapes.pop(f"{head}post_attention_layernorm.weight")
    weights = agreeing_weights(shapes)
    weights[f"{head}eh_proj.weight"] = lean_on_embedding(HIDDEN, embedding_first=True)
    save_model(folder, config, weights)


def _ernie(folder: Path) -> None:
    config = {
        **BASE,
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "num_nextn_predict_layers": 1,
        "use_bias": False,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 64,
        "moe_num_shared_experts": 0,
        "moe_layer_start_index": 99,
        "moe_layer_end_index": 99,
    }
    shapes = {
        **causal_lm(config),
        **layer(config, "model.mtp_block.0."),
        "model.mtp_linear_proj.0.weight": (HIDDEN, 2 * HIDDEN),
        "model.mtp_emb_norm.0.weight": (HIDDEN,),
        "model.mtp_hidden_norm.0.weight": (HIDDEN,),
    }
    weights = agreeing_weights(shapes)
    weights["model.mtp_linear_proj.0.weight"] = lean_on_embedding(HIDDEN, embedding_first=True)
    save_model(folder, config, weights)


MIMO = Kind(name="mimo_mtp", build=_mimo, options=with_own_heads, runners=("v1", "v2"))
MIMO_V2 = Kind(name="mimo_v2_mtp", build=_mimo_v2, options=with_own_heads, runners=("v1", "v2"))
ERNIE = Kind(name="ernie_mtp", build=_ernie, options=with_own_heads, runners=("v1", "v2"))
