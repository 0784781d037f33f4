"""Multi-token prediction: heads that are part of the target's own checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from support.checkpoints import save_model

from verification.zoo.drafters import WINDOW
from verification.zoo.kind import (
    BASE,
    HIDDEN,
    INPUT,
    Anatomy,
    Kind,
    Shapes,
    agreeing_weights,
    causal_lm,
    layer,
    lean_on_embedding,
    mlp,
    random_weights,
    speculating,
)

DEPTHS = 3


def _mimo(folder: Path) -> None:
    config = {
        **BASE,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
    }
    head = "model.mtp_layers.0."
    shapes = {**causal_lm(config), **layer(config, head, INPUT)}
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
        **layer(config, head, INPUT),
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
        **layer(config, "model.mtp_block.0.", INPUT),
        "model.mtp_linear_proj.0.weight": (HIDDEN, 2 * HIDDEN),
        "model.mtp_emb_norm.0.weight": (HIDDEN,),
        "model.mtp_hidden_norm.0.weight": (HIDDEN,),
    }
    weights = agreeing_weights(shapes)
    weights["model.mtp_linear_proj.0.weight"] = lean_on_embedding(HIDDEN, embedding_first=True)
    save_model(folder, config, weights)


NORMED = (("postnorm_rms", "fed_rms"),)
ONE_NORM = Anatomy(outputs=NORMED, norm="model.mtp_layers.2.final_layernorm")
SINKS = Anatomy(outputs=NORMED, norm="model.mtp.layers.0.final_layernorm", window=WINDOW, bias=True)
NO_NORM = Anatomy(outputs=(("prenorm_rms", "fed_rms"),), norm=None)
OWN_HEADS = speculating("mtp", target="", drafter=None, depths=DEPTHS)
MIMO = Kind("mimo_mtp", _mimo, OWN_HEADS, ONE_NORM, "MTP")
MIMO_V2 = Kind("mimo_v2_mtp", _mimo_v2, OWN_HEADS, SINKS, "MTP")
ERNIE = Kind("ernie_mtp", _ernie, OWN_HEADS, NO_NORM, "MTP")


MLA: dict[str, Any] = {
    **{name: value for name, value in BASE.items() if name != "head_dim"},
    "num_key_value_heads": BASE["num_attention_heads"],
    "num_hidden_layers": 3,
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 99,
    "rope_scaling": {
        "type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": BASE["max_position_embeddings"] // 2,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
"""Sizes that the CPU's kernels accept: the decode kernel requires a latent of 512 with 64 rotary
dimensions.

The EAGLE-3 drafter cannot be loaded without a rank for the queries. Without scaling, the CPU's
rotary kernel mistakes the heads of the first rows for rows, because the queries are a slice.
"""
SHARE = 0.6
"""Share of the embedding; more than elsewhere, because three layers add to it."""
AUX = [1, 2]
"""Captured layers, without the first: it has no residual yet, and vLLM fails when asked for it."""


def mla_layer(config: dict[str, Any], prefix: str, width: int = HIDDEN) -> Shapes:
    """Return the weights of one decoder layer with a dense feed-forward block."""
    heads, rank, query_rank = (
        config[n] for n in ("num_attention_heads", "kv_lora_rank", "q_lora_rank")
    )
    nope, rope, value = (config[f"{n}_head_dim"] for n in ("qk_nope", "qk_rope", "v"))
    attention = f"{prefix}self_attn."
    return {
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
        f"{attention}q_a_proj.weight": (query_rank, width),
        f"{attention}q_a_layernorm.weight": (query_rank,),
        f"{attention}q_b_proj.weight": (heads * (nope + rope), query_rank),
        f"{attention}kv_a_proj_with_mqa.weight": (rank + rope, width),
        f"{attention}kv_a_layernorm.weight": (rank,),
        f"{attention}kv_b_proj.weight": (heads * (nope + value), rank),
        f"{attention}o_proj.weight": (HIDDEN, heads * value),
        **mlp(HIDDEN, config["intermediate_size"], f"{prefix}mlp."),
    }


def _deepseek(folder: Path, modules: int = 1) -> None:
    config = {
        **MLA,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": modules,
    }
    layers, vocabulary = config["num_hidden_layers"], config["vocab_size"]
    heads = [f"model.layers.{layers + module}." for module in range(modules)]
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for index in range(layers + modules):
        shapes |= mla_layer(config, f"model.layers.{index}.")
    for head in heads:
        norms = ("enorm", "hnorm", "shared_head.norm")
        shapes |= {f"{head}{norm}.weight": (HIDDEN,) for norm in norms}
    weights = agreeing_weights(
        shapes, *(f"{head}shared_head.head.weight" for head in heads), share=SHARE
    )
    for head in heads:
        weights[f"{head}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        weights[f"{head}eh_proj.weight"] = lean_on_embedding(
            HIDDEN, embedding_first=True, share=SHARE
        )
    save_model(folder, config, weights)


def _kimi(folder: Path) -> None:
    _deepseek(folder / "target")
    config = {
        **MLA,
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 1,
        "draft_vocab_size": MLA["vocab_size"],
        "eagle_aux_hidden_state_layer_ids": AUX,
        "num_aux_hidden_states": len(AUX),
    }
    shapes: Shapes = {
        "fc.weight": (HIDDEN, HIDDEN * len(AUX)),
        **mla_layer(config, "layers.0.", 2 * HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (config["vocab_size"], HIDDEN),
    }
    save_model(folder / "drafter", config, random_weights(shapes))


BACKEND = {"attention_backend": "CPU_MLA"}
IN_FLOAT32: dict[str, Any] = {"depths": DEPTHS, "llm": BACKEND, **BACKEND}
"""A float32 backend: on processors with AMX, vLLM prefers one that supports only bfloat16."""
HEADS = speculating("mtp", target="", drafter=None, **IN_FLOAT32)
IN_FOLDERS = speculating("eagle3", target="target", drafter="drafter", **IN_FLOAT32)
BOTH_STATES = Anatomy(outputs=(("prenorm_rms",), ("postnorm_rms", "fed_rms")), norm=None)
DEEPSEEK = Kind("deepseek_mtp", _deepseek, HEADS, BOTH_STATES, "MTP")
# Of several heads V1 runs the first at each depth.
SEVERAL = partial(_deepseek, modules=DEPTHS)
MODULES = Kind("deepseek_mtp_modules", SEVERAL, HEADS, BOTH_STATES, "MTP")
KIMI = Kind("eagle3_mla", _kimi, IN_FOLDERS, Anatomy())
