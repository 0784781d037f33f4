"""Drafters apart from the target: EAGLE, sliding windows, DFlash, draft models, look-up, Medusa."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from driftscope_lab.trio import trio_path
from verification.zoo.kind import (
    BASE,
    HIDDEN,
    Kind,
    Shapes,
    agreeing_weights,
    attention,
    causal_lm,
    layer,
    lean_on_embedding,
    random_weights,
    save_model,
)

DEPTHS = 4
AUX = [1, 2, 3]
"""Layers of the shipped target whose hidden states an EAGLE-3 drafter reads."""
WINDOW = 8
"""Window size, shorter than most prompts here, so that it takes effect."""


def trio_target() -> Path:
    """Return the folder of the shipped target."""
    return trio_path() / "target"


def trio_config() -> dict[str, Any]:
    """Return the shipped target's config."""
    config: dict[str, Any] = json.loads((trio_target() / "config.json").read_text())
    return config


def on_trio(method: str, folder: Path, **more: Any) -> dict[str, Any]:
    """Return options for a drafter of the shipped target."""
    speculation = {"method": method, "model": str(folder), "num_speculative_tokens": DEPTHS}
    return {"model": str(trio_target()), "speculative_config": {**speculation, **more}}


def _eagle1(folder: Path) -> None:
    target = {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    save_model(folder / "target", target, agreeing_weights(causal_lm(target)))
    config = {**target, "num_hidden_layers": 1}
    shapes = layer(config, "layers.0.", input_norm=False)
    fc = {"fc.weight": lean_on_embedding(HIDDEN, embedding_first=True, share=1.0)}
    save_model(folder / "drafter", config, {**random_weights(shapes), **fc})


def _eagle1_options(folder: Path) -> dict[str, Any]:
    options = on_trio("eagle", folder / "drafter")
    return {**options, "model": str(folder / "target")}


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
        prefix = f"layers.{index}."
        shapes |= layer(config, prefix)
        width = 2 * hidden if index == 0 else hidden
        shapes |= attention(config, f"{prefix}self_attn.", width)
        shapes[f"{prefix}hidden_norm.weight"] = (hidden,)
    return {**random_weights(shapes), "d2t": torch.zeros(drafts, dtype=torch.int64)}


def _window(folder: Path) -> None:
    config = eagle3_config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=WINDOW,
    )
    save_model(folder, config, eagle3_weights(config))


def _all_windows(folder: Path) -> None:
    shipped = trio_path() / "eagle3"
    config = json.loads((shipped / "config.json").read_text())
    config |= {"layer_types": ["sliding_attention"], "sliding_window": WINDOW}
    save_model(folder, config, load_file(shipped / "model.safetensors"))


def _parallel(folder: Path) -> None:
    config = eagle3_config(ptd_token_id=5)
    weights = eagle3_weights(config)
    weights["mask_hidden"] = torch.ones(1, config["hidden_size"] * len(AUX))
    save_model(folder, config, weights)


EAGLE1 = Kind(name="eagle1", build=_eagle1, options=_eagle1_options, runners=("v1", "v2"))
WINDOW_ALL = Kind(
    name="eagle3_window",
    build=_all_windows,
    options=lambda folder: on_trio("eagle3", folder),
    runners=("v1", "v2"),
)
WINDOW_MIXED = Kind(
    name="eagle3_window_mixed",
    build=_window,
    options=lambda folder: on_trio("eagle3", folder),
    runners=("v2",),
    # V1: drafting layers in two KV cache groups (v1/spec_decode/llm_base_proposer.py:1697)
)
WINDOW_ONE_GROUP = Kind(
    name="eagle3_window_one_group",
    build=_window,
    options=lambda folder: {**on_trio("eagle3", folder), "disable_hybrid_kv_cache_manager": True},
    runners=("v1", "v2"),
)
P_EAGLE = Kind(
    name="p_eagle",
    build=_parallel,
    options=lambda folder: on_trio("eagle3", folder, parallel_drafting=True),
    runners=("v1",),
    # V2: no parallel drafting for EAGLE (config/vllm.py:2943)
)


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


DFLASH_SINKS = Kind(
    name="dflash_window_sinks",
    build=partial(_dflash, use_swa=True, swa_window_size=WINDOW, attention_sink_bias=True),
    options=lambda folder: on_trio("dflash", folder),
    runners=("v1", "v2"),
)


NGRAMS = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}


def _nothing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def lookup(method: str, **more: Any) -> Callable[[Path], dict[str, Any]]:
    """Return options for a method without weights."""
    speculation = {"method": method, "num_speculative_tokens": DEPTHS, **more}

    def options(folder: Path) -> dict[str, Any]:
        return {"model": str(trio_target()), "speculative_config": speculation}

    return options


def draft_config(**more: Any) -> dict[str, Any]:
    """Return the config of a narrow model with the shipped target's vocabulary."""
    narrow = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    return {**trio_config(), **narrow, "tie_word_embeddings": False, **more}


def _llama(folder: Path) -> None:
    """Write the shipped target without its last layer."""
    config = trio_config()
    kept = config["num_hidden_layers"] - 1
    weights = load_file(trio_target() / "model.safetensors")
    weights = {k: v for k, v in weights.items() if not k.startswith(f"model.layers.{kept}.")}
    save_model(folder, {**config, "num_hidden_layers": kept}, weights)


def _gemma2(folder: Path) -> None:
    config = draft_config(
        architectures=["Gemma2ForCausalLM"],
        model_type="gemma2",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=32,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=30.0,
        layer_types=["full_attention"] * 2,
        tie_word_embeddings=True,
    )
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


DRAFT_MODEL = Kind(
    name="draft_model",
    build=_llama,
    options=lambda folder: on_trio("draft_model", folder),
    runners=("v1", "v2"),
)
SOFT_CAP = Kind(
    name="draft_model_gemma2",
    build=_gemma2,
    options=lambda folder: on_trio("draft_model", folder),
    runners=("v1", "v2"),
)
NGRAM = Kind(
    name="ngram",
    build=_nothing,
    options=lookup("ngram", **NGRAMS),
    runners=("v1", "v2"),
)
SUFFIX = Kind(
    name="suffix",
    build=_nothing,
    options=lookup("suffix"),
    runners=(),
    # needs the package arctic-inference (config/speculative.py:1598)
)
MEDUSA = Kind(
    name="medusa",
    build=_medusa,
    options=lambda folder: on_trio("medusa", folder),
    runners=("v1",),
    # V2: no speculator for it (config/vllm.py:2928)
)
