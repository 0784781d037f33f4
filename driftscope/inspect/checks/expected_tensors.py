"""Names and shapes of the tensors that an engine expects of a drafter with a given config."""

from __future__ import annotations

from driftscope.inspect.files.checkpoint_format import Family
from driftscope.inspect.files.drafter_files import DrafterFiles

Shape = tuple[int, ...]
ATTENTION = "self_attn."
FC_BIAS = "fc.bias"
HEAD, EMBEDDING, D2T, T2D = "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"


def required(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the tensors without which a drafter cannot work, by their common name."""
    hidden = drafter.hidden_size
    shapes: dict[str, Shape] = {"fc.weight": (hidden, fc_inputs(drafter))}
    if drafter.format.family is not Family.EAGLE1:
        shapes |= {"norm.weight": (hidden,), "layers.0.hidden_norm.weight": (hidden,)}
    for layer in range(drafter.layers):
        shapes |= {f"layers.{layer}.{name}": one for name, one in _layer(drafter, layer).items()}
    return shapes


def optional(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the tensors that an engine can do without, or that other checks judge."""
    width, states = drafter.target_hidden_size, drafter.aux_states
    shapes: dict[str, Shape] = {EMBEDDING: (drafter.vocab_size, drafter.hidden_size)}
    if drafter.format.family is Family.EAGLE1:  # its head is the target's
        return shapes | (_of_sglang(drafter) if drafter.for_sglang else {})
    shapes |= {
        HEAD: (drafter.draft_vocab_size, drafter.hidden_size),
        D2T: (drafter.draft_vocab_size,),
        T2D: (drafter.vocab_size,),
        "input_norm.weight": (states * width,),
        **{f"fc_norm.{state}.weight": (width,) for state in range(states)},
    }
    for layer in range(drafter.layers):
        shapes |= {f"layers.{layer}.{name}": one for name, one in _biases(drafter).items()}
    return shapes


def _of_sglang(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the tensors that SGLang has a place for, or passes over, and that vLLM refuses."""
    hidden = drafter.hidden_size
    return {FC_BIAS: (hidden,), HEAD: (drafter.vocab_size, hidden)}


def fc_inputs(drafter: DrafterFiles) -> int:
    """Return the width that `fc` reads: captured states times their width, or the embedding and one
    state of an EAGLE-1 drafter."""
    if drafter.format.family is Family.EAGLE1:
        return 2 * drafter.hidden_size
    return drafter.aux_states * drafter.target_hidden_size


def _layer(drafter: DrafterFiles, layer: int) -> dict[str, Shape]:
    hidden, inner = drafter.hidden_size, drafter.size("intermediate_size")
    first = layer == 0
    is_eagle1 = drafter.format.family is Family.EAGLE1
    reads = 2 * hidden if first and not is_eagle1 else hidden
    latent = drafter.format.family is Family.MLA
    attention = _latent_attention(drafter, reads) if latent else _attention(drafter, reads)
    normed: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    return {
        **({} if first and is_eagle1 else normed),
        **{ATTENTION + name: shape for name, shape in attention.items()},
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }


def _attention(drafter: DrafterFiles, reads: int) -> dict[str, Shape]:
    queries, keys, size = _heads(drafter)
    normed = drafter.format.family is Family.QWEN3
    return {
        "q_proj.weight": (queries * size, reads),
        "k_proj.weight": (keys * size, reads),
        "v_proj.weight": (keys * size, reads),
        "o_proj.weight": (drafter.hidden_size, queries * size),
        **({"q_norm.weight": (size,), "k_norm.weight": (size,)} if normed else {}),
    }


def _biases(drafter: DrafterFiles) -> dict[str, Shape]:
    if not drafter.fields.get("attention_bias") or drafter.format.family is Family.MLA:
        return {}
    queries, keys, size = _heads(drafter)
    return {
        f"{ATTENTION}q_proj.bias": (queries * size,),
        f"{ATTENTION}k_proj.bias": (keys * size,),
        f"{ATTENTION}v_proj.bias": (keys * size,),
        f"{ATTENTION}o_proj.bias": (drafter.hidden_size,),
    }


def _heads(drafter: DrafterFiles) -> tuple[int, int, int]:
    """Return the number of query heads, of key heads, and the size of a head."""
    queries = drafter.size("num_attention_heads")
    keys = drafter.size("num_key_value_heads", queries)
    return queries, keys, drafter.size("head_dim", max(1, drafter.hidden_size // queries))


def _latent_attention(drafter: DrafterFiles, reads: int) -> dict[str, Shape]:
    heads, rank = drafter.size("num_attention_heads"), drafter.size("kv_lora_rank")
    plain, turned = drafter.size("qk_nope_head_dim"), drafter.size("qk_rope_head_dim")
    values = drafter.size("v_head_dim")
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (rank + turned, reads),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (plain + values), rank),
        "o_proj.weight": (drafter.hidden_size, heads * values),
    }
    low = drafter.fields.get("q_lora_rank")
    if not isinstance(low, int):
        return {**shapes, "q_proj.weight": (heads * (plain + turned), reads)}
    return {
        **shapes,
        "q_a_proj.weight": (low, reads),
        "q_a_layernorm.weight": (low,),
        "q_b_proj.weight": (heads * (plain + turned), low),
    }
