"""Checkpoints of the reference target and drafters, read and written as vLLM loads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from driftscope.boundary.text import dumps
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.reference.config import (
    BOS_ID,
    EAGLE1_DRAFTER,
    EOS_ID,
    LATENT_DRAFTER,
    LLAMA_DRAFTER,
    PAD_ID,
    QWEN3_DRAFTER,
    DecoderConfig,
    DrafterConfig,
)
from driftscope.inspect.reference.drafter import FIRST, REFERENCE, ReferenceDrafter, reference_name
from driftscope.inspect.reference.layers import Target


def layer_fields(layer: DecoderConfig) -> dict[str, Any]:
    """Return the fields that the `config.json` of a target and of a drafter have in common."""
    sizes = asdict(layer)
    if layer.partial_rotary_factor == 1:
        del sizes["partial_rotary_factor"]
    return {
        "model_type": "llama",
        **sizes,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
    }


def drafter_fields(config: DrafterConfig) -> dict[str, Any]:
    """Return the `config.json` of a drafter.

    The auxiliary layers are written unless `names_aux_layers` is off, because vLLM's default
    for them collapses on a target of few layers.
    """
    if config.eagle1:
        return {"architectures": [EAGLE1_DRAFTER], **layer_fields(config.layer)}
    latent = asdict(config.latent) if config.latent else {}
    latent.pop("scale", None)
    plain = QWEN3_DRAFTER if config.qk_norm else LLAMA_DRAFTER
    aux = {AUX_LAYERS: list(config.aux_layers)} if config.names_aux_layers else {}
    only_if_set = {
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "target_hidden_size": config.target_hidden_size,
    }
    return {
        "architectures": [LATENT_DRAFTER if latent else plain],
        **layer_fields(config.layer),
        **({"model_type": "qwen3"} if config.qk_norm else {}),
        **({"model_type": "deepseek_v2", **latent} if latent else {}),
        "draft_vocab_size": config.draft_vocab_size or config.layer.vocab_size,
        **{name: True for name in ("attention_bias", "mlp_bias") if getattr(config, name)},
        "tie_word_embeddings": False,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        **{name: value for name, value in only_if_set.items() if value},
        **aux,
        "eagle_config": {**aux, "use_aux_hidden_state": True},
    }


def load_target(path: Path, dtype: torch.dtype = torch.float32) -> Target:
    """Read a target directory. Raises KeyError for a config that lacks a size."""
    target = Target(DecoderConfig.from_hf(_read_config(path)))
    target.load_state_dict(load_file(path / "model.safetensors"))
    return target.to(dtype).eval()


def load_drafter(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    target_layers: int | None = None,
    head: torch.Tensor | None = None,
) -> ReferenceDrafter:
    """Read a drafter directory. `head` is the target's, [vocabulary, H], for a drafter that has
    none. Raises KeyError for a config that names no auxiliary layers, unless `target_layers`, its
    target's number of layers, is given: the drafter then gets vLLM's default."""
    drafter = ReferenceDrafter(DrafterConfig.from_hf(_read_config(path), target_layers))
    shared = {} if head is None else {"lm_head.weight": head}
    stored = load_file(path / "model.safetensors")
    named = {reference_name(name): tensor for name, tensor in stored.items()}
    drafter.load_state_dict({**shared, **named})
    return drafter.to(dtype).eval()


def save_target(target: Target, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a target directory that vLLM loads."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        **layer_fields(target.config),
        "tie_word_embeddings": True,
    }
    _write(path, fields, target.state_dict(), dtype)


def save_drafter(
    drafter: ReferenceDrafter, path: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a drafter directory that vLLM loads under method `eagle3`, or `eagle` for EAGLE-1,
    whose head is the target's and is not written."""
    state = drafter.state_dict()
    if drafter.config.eagle1:
        named = {name.replace(REFERENCE, FIRST, 1): tensor for name, tensor in state.items()}
        state = {name: tensor for name, tensor in named.items() if not name.startswith("lm_head.")}
    _write(path, drafter_fields(drafter.config), state, dtype)


def _read_config(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return fields


def _write(
    path: Path, fields: dict[str, Any], state: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in state.items()
    }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    fields = {**fields, "torch_dtype": str(dtype).removeprefix("torch.")}
    (path / "config.json").write_text(dumps(fields, indent=1) + "\n", encoding="utf-8")
