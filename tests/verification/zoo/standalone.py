"""Drafting by a separate model, by look-up, and by heads without attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from verification.zoo.eagle import DEPTHS, on_trio, trio_config, trio_target
from verification.zoo.kind import Kind, causal_lm, random_weights, save_model

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
    runners=("v1",),
    # Triton's interpreter fails on V2's mask (v1/worker/gpu/spec_decode/ngram/speculator.py:140)
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
