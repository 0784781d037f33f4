"""Multi-head latent attention: DeepSeek's own MTP head and Kimi's EAGLE-3 drafter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from verification.zoo.kind import (
    BASE,
    HIDDEN,
    Kind,
    Shapes,
    agreeing_weights,
    lean_on_embedding,
    mlp,
    random_weights,
    save_model,
)
from verification.zoo.mtp import DEPTHS, with_own_heads

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


def _kimi_options(folder: Path) -> dict[str, Any]:
    speculation = {
        "method": "eagle3",
        "model": str(folder / "drafter"),
        "num_speculative_tokens": DEPTHS,
    }
    return {"model": str(folder / "target"), "speculative_config": speculation}


def _in_float32(options: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
    """Force a float32 backend: on processors with AMX, vLLM prefers one that supports only
    bfloat16."""

    def with_backend(folder: Path) -> dict[str, Any]:
        found = options(folder)
        backend = {"attention_backend": "CPU_MLA"}
        return {
            **found,
            **backend,
            "speculative_config": {**found["speculative_config"], **backend},
        }

    return with_backend


DEEPSEEK = Kind(
    name="deepseek_mtp", build=_deepseek, options=_in_float32(with_own_heads), runners=("v1", "v2")
)
KIMI = Kind(
    name="eagle3_mla", build=_kimi, options=_in_float32(_kimi_options), runners=("v1", "v2")
)
MODULES = Kind(
    name="deepseek_mtp_modules",
    build=partial(_deepseek, modules=DEPTHS),
    options=_in_float32(with_own_heads),
    runners=("v1", "v2"),
)
