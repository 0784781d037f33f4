"""Names and shapes of the weights of a Llama-like layer, of which most kinds consist."""

from __future__ import annotations

from typing import Any

from verification.zoo.weights import VOCABULARY, Shapes

HIDDEN = 128
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
"""Config of a small target."""


def attention(config: dict[str, Any], prefix: str, width: int | None = None) -> Shapes:
    """Return the projections of grouped-query attention; `width` is that of the input."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = (config[f"num_{n}_heads"] * head for n in ("attention", "key_value"))
    width = width or hidden
    return {
        f"{prefix}q_proj.weight": (queries, width),
        f"{prefix}k_proj.weight": (keys, width),
        f"{prefix}v_proj.weight": (keys, width),
        f"{prefix}o_proj.weight": (hidden, queries),
    }


def mlp(hidden: int, inner: int, prefix: str) -> Shapes:
    """Return the projections of a gated feed-forward block."""
    return {
        f"{prefix}gate_proj.weight": (inner, hidden),
        f"{prefix}up_proj.weight": (inner, hidden),
        f"{prefix}down_proj.weight": (hidden, inner),
    }


def layer(config: dict[str, Any], prefix: str, *, input_norm: bool = True) -> Shapes:
    """Return the weights of one decoder layer."""
    hidden = config["hidden_size"]
    norms = ("input_layernorm", "post_attention_layernorm")[0 if input_norm else 1 :]
    return {
        **{f"{prefix}{norm}.weight": (hidden,) for norm in norms},
        **attention(config, f"{prefix}self_attn."),
        **mlp(hidden, config["intermediate_size"], f"{prefix}mlp."),
    }


def causal_lm(config: dict[str, Any]) -> Shapes:
    """Return the weights of a whole Llama-like model."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for index in range(config["num_hidden_layers"]):
        shapes |= layer(config, f"model.layers.{index}.")
    return {**shapes, "model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
