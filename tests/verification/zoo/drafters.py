"""Drafters apart from the target: EAGLE, sliding windows, DFlash, draft models, look-up, Medusa."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support.checkpoints import TARGET, changed, fields, save_model

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
    random_weights,
    speculating,
    trio_config,
)

DEPTHS = 4
AUX = [1, 2, 3]
"""Layers of the shipped target whose hidden states an EAGLE-3 drafter reads."""
WINDOW = 8
"""Window size, shorter than most prompts here, so that it takes effect."""


def _eagle1(folder: Path) -> None:
    target = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    save_model(folder / "target", target, agreeing_weights(causal_lm(target)))
    config = {**target, "num_hidden_layers": 1}
    fc = {"fc.weight": lean_on_embedding(HIDDEN, embedding_first=True, share=1.0)}
    weights = random_weights(layer(config, "layers.0."))
    save_model(folder / "drafter", config, {**weights, **fc})


def eagle3_config(**more: Any) -> dict[str, Any]:
    """Return the config of a one-layer EAGLE-3 drafter of the shipped target."""
    return {
        **trio_config(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 128,
        "tie_word_embeddings": False,
        "draft_vocab_size": 256,
        "eagle_aux_hidden_state_layer_ids": AUX,
        "num_aux_hidden_states": len(AUX),
        **more,
    }


def eagle3_weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return random weights for such a drafter, whose vocabulary is the target's first ids."""
    hidden, drafts = config["hidden_size"], config["draft_vocab_size"]
    shapes: Shapes = {
        "fc.weight": (hidden, hidden * len(AUX)),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafts, hidden),
    }
    for index in range(config["num_hidden_layers"]):
        width = 2 * hidden if index == 0 else hidden
        shapes |= layer(config, f"layers.{index}.", INPUT, width=width)
        shapes[f"layers.{index}.hidden_norm.weight"] = (hidden,)
    return {**random_weights(shapes), "d2t": torch.zeros(drafts, dtype=torch.int64)}


def _window(folder: Path) -> None:
    config = eagle3_config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=WINDOW,
    )
    save_model(folder, config, eagle3_weights(config))


def _all_windows(folder: Path) -> None:
    window = fields(layer_types=["sliding_attention"], sliding_window=WINDOW)
    changed(folder, "eagle3", config=window)


def _parallel(folder: Path) -> None:
    config = eagle3_config(ptd_token_id=5)
    weights = eagle3_weights(config)
    weights["mask_hidden"] = torch.ones(1, config["hidden_size"] * len(AUX))
    save_model(folder, config, weights)


def _dflash(folder: Path) -> None:
    config = {
        **trio_config(),
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "layer_types": ["full_attention"] * 2,
        "block_size": 8,
        "dflash_config": {
            "mask_token_id": 5,
            "target_layer_ids": [0, 1, 2],
            "use_swa": True,
            "swa_window_size": WINDOW,
            "attention_sink_bias": True,
        },
    }
    hidden, head, heads = (config[n] for n in ("hidden_size", "head_dim", "num_attention_heads"))
    shapes: Shapes = {
        "fc.weight": (hidden, hidden * 3),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(2):
        attention = f"layers.{index}.self_attn."
        shapes |= {
            **layer(config, f"layers.{index}.", INPUT),
            f"{attention}q_norm.weight": (head,),
            f"{attention}k_norm.weight": (head,),
            f"{attention}attention_sink_bias": (heads,),
        }
    save_model(folder, config, random_weights(shapes))


def _llama(folder: Path) -> None:
    """Write the shipped target without its last layer."""
    config = trio_config()
    kept = config["num_hidden_layers"] - 1
    weights = load_file(TARGET / "model.safetensors")
    weights = {k: v for k, v in weights.items() if not k.startswith(f"model.layers.{kept}.")}
    save_model(folder, {**config, "num_hidden_layers": kept}, weights)


def _gemma2(folder: Path) -> None:
    """Write a narrow model with the shipped target's vocabulary."""
    config = {
        **trio_config(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 30.0,
        "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": True,
    }
    shapes = causal_lm(config)
    del shapes["lm_head.weight"]
    for index in range(config["num_hidden_layers"]):
        for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[f"model.layers.{index}.{norm}.weight"] = (config["hidden_size"],)
    weights = random_weights(shapes)
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] -= 1
    save_model(folder, config, weights)


def _medusa(folder: Path) -> None:
    target = trio_config()
    hidden, vocabulary = target["hidden_size"], target["vocab_size"]
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "num_heads": DEPTHS,
        "num_hidden_layers": 1,
        "original_lm_head": True,
    }
    shapes = {f"blocks.{i}.layers.0.weight": (hidden, hidden) for i in range(DEPTHS)}
    save_model(
        folder, config, random_weights({**shapes, "lm_heads.0.weight": (vocabulary, hidden)})
    )


def _nothing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


ALONE = {"hidden": False, "outputs": (("postnorm_rms",),), "lead": 1}
"""Anatomy of a drafter that does not read the target's states at its queries."""
CAUSAL = Anatomy(window=WINDOW)
TWO_STATES = Anatomy(outputs=(("prenorm_rms",), ("fed_rms",)), norm=None)
QUERIES = Anatomy(outputs=(("postnorm_rms",), ()), block=True)
HEADS = Anatomy(outputs=(("prenorm_rms",),), norm=None, block=True)
BLOCKS = Anatomy(**ALONE, block=True, first=2, window=WINDOW, bias=True)
EAGLE3 = speculating("eagle3")
ONE_GROUP = speculating("eagle3", llm={"disable_hybrid_kv_cache_manager": True})
IN_FOLDERS = speculating("eagle", target="target", drafter="drafter")
LOOKED_UP = speculating("ngram", drafter=None, prompt_lookup_min=1, prompt_lookup_max=3)
PARALLEL = speculating("eagle3", parallel_drafting=True)

EAGLE1 = Kind("eagle1", _eagle1, IN_FOLDERS, TWO_STATES, "EAGLE-1")
WINDOW_ALL = Kind("eagle3_window", _all_windows, EAGLE3, CAUSAL)
# V1: drafting layers in two KV cache groups (v1/spec_decode/llm_base_proposer.py:1697)
WINDOW_MIXED = Kind("eagle3_window_mixed", _window, EAGLE3, CAUSAL, runners=("v2",))
WINDOW_ONE_GROUP = Kind("eagle3_window_one_group", _window, ONE_GROUP, CAUSAL)
# V2: no parallel drafting for EAGLE (config/vllm.py:2943)
P_EAGLE = Kind("p_eagle", _parallel, PARALLEL, QUERIES, "P-EAGLE", runners=("v1",))
DFLASH_SINKS = Kind("dflash_window_sinks", _dflash, speculating("dflash"), BLOCKS, "DFlash")
DRAFT_MODEL, SOFT_CAP = (
    Kind(name, build, speculating("draft_model"), Anatomy(**ALONE, first=1), "draft model")
    for name, build in (("draft_model", _llama), ("draft_model_gemma2", _gemma2))
)
NGRAM = Kind("ngram", _nothing, LOOKED_UP, None, "n-gram")
# It needs the package arctic-inference (config/speculative.py:1598).
SUFFIX = Kind("suffix", _nothing, speculating("suffix", drafter=None), None, "suffix", runners=())
# V2: no speculator for it (config/vllm.py:2928)
MEDUSA = Kind("medusa", _medusa, speculating("medusa"), HEADS, "Medusa", runners=("v1",))
