"""The reference target, and folders of reference models, which vLLM loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from driftscope.boundary import strict_json
from driftscope.inspect.reference.config import (
    FINAL_STATE,
    DecoderConfig,
    DrafterConfig,
    LatentConfig,
)
from driftscope.inspect.reference.drafter import Drafter, reference_name
from driftscope.inspect.reference.layers import MLP, Attention, RMSNorm, Rotary, causal_attention

BOS_ID, EOS_ID, PAD_ID = 0, 4, 5
AUX = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """Output of the target: `hidden` [B, S, H] after the final norm, and `aux` [B, S, H] per
    captured layer, not normed."""

    hidden: Tensor
    aux: tuple[Tensor, ...]


class KVCache:
    """Keys and values of one batch of sequences, allocated once; can be truncated again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._store: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, N, S, D] after the first `length` positions; return all up to the end."""
        if layer not in self._store:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self._store[layer] = (keys.new_zeros(shape), values.new_zeros(shape))
        end = self.length + keys.shape[2]
        for store, new in zip(self._store[layer], (keys, values), strict=True):
            store[:, :, self.length : end] = new
        all_keys, all_values = self._store[layer]
        return all_keys[:, :, :end], all_values[:, :, :end]

    def truncate(self, length: int) -> None:
        """Discard everything after the first `length` positions."""
        self.length = min(self.length, length)


class TargetLayer(nn.Module):
    """Pre-norm decoder layer: residual + attention, residual + MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, rotary: Rotary, positions: Tensor, cache: KVCache | None, index: int
    ) -> Tensor:
        """Run the layer on [B, S, H] at `positions` [S]; `index` is its key in the cache."""
        normed = self.input_layernorm(x)
        queries = self.self_attn.queries(normed, rotary, positions)
        keys, values = self.self_attn.keys_values(normed, rotary, positions)
        if cache is not None:
            keys, values = cache.extend(index, keys, values)
        x = x + self.self_attn.output(causal_attention(queries, keys, values, positions))
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class TargetBody(nn.Module):
    """The parameters under the prefix `model.`"""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TargetLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Target(nn.Module):
    """LlamaForCausalLM with tied embeddings."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TargetBody(config)
        self.rotary = Rotary(config)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]. The drafter shares this embedding."""
        embedded: Tensor = self.model.embed_tokens(ids)
        return embedded

    def forward(
        self, ids: Tensor, *, aux_layers: Sequence[int] = (), cache: KVCache | None = None
    ) -> TargetOutput:
        """Run `ids` [B, S] after the cached tokens. Layers count from 1; 0 is the embedding, and
        FINAL_STATE the state after the final norm."""
        start = cache.length if cache is not None else 0
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        outputs = [self.embed(ids)]
        for index, layer in enumerate(self.model.layers):
            outputs.append(layer(outputs[-1], self.rotary, positions, cache, index))
        if cache is not None:
            cache.length = start + ids.shape[1]
        final: Tensor = self.model.norm(outputs[-1])
        aux = tuple(final if layer == FINAL_STATE else outputs[layer] for layer in aux_layers)
        return TargetOutput(hidden=final, aux=aux)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., vocabulary] for [..., H] after the final norm."""
        return functional.linear(hidden, self.model.embed_tokens.weight)


@singledispatch
def to_hf(config: LatentConfig) -> dict[str, Any]:
    """Return a config as fields of a `config.json`."""
    names = (name for name in config.__dataclass_fields__ if name != "scale")
    return {name: getattr(config, name) for name in names}


@to_hf.register
def _(config: DecoderConfig) -> dict[str, Any]:
    """Return the fields that the `config.json` of a target and of a drafter have in common."""
    sizes = {name: getattr(config, name) for name in config.__dataclass_fields__}
    if config.partial_rotary_factor == 1:
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


@to_hf.register
def _(config: DrafterConfig) -> dict[str, Any]:
    """Return the `config.json` of a drafter.

    The auxiliary layers are written unless `names_aux_layers` is off, because vLLM's default for
    them collapses on a target of few layers.
    """
    if config.eagle1:
        return {"architectures": [config.architecture], **to_hf(config.layer)}
    aux = {AUX: list(config.aux_layers)} if config.names_aux_layers else {}
    only_if_set = {
        "norm_before_fc": config.norm_before_fc,
        "norm_before_residual": config.norm_before_residual,
        "target_hidden_size": config.target_hidden_size,
    }
    return {
        "architectures": [config.architecture],
        **to_hf(config.layer),
        **({"model_type": "qwen3"} if config.qk_norm else {}),
        **({"model_type": "deepseek_v2", **to_hf(config.latent)} if config.latent else {}),
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
    target = Target(DecoderConfig.from_hf(_fields(path)))
    target.load_state_dict(load_file(path / "model.safetensors"))
    return target.to(dtype).eval()


def load_drafter(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    target_layers: int | None = None,
    head: torch.Tensor | None = None,
) -> Drafter:
    """Read a drafter directory. `head` is the target's, [vocabulary, H], for a drafter that has
    none. Raises KeyError for a config that names no auxiliary layers, unless `target_layers`, its
    target's number of layers, is given: the drafter then gets vLLM's default."""
    drafter = Drafter(DrafterConfig.from_hf(_fields(path), target_layers))
    shared = {} if head is None else {"lm_head.weight": head}
    stored = load_file(path / "model.safetensors")
    named = {reference_name(name): tensor for name, tensor in stored.items()}
    drafter.load_state_dict({**shared, **named})
    return drafter.to(dtype).eval()


def save_target(target: Target, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a target directory that vLLM loads."""
    own = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    _write(path, {**to_hf(target.config), **own}, target.state_dict(), dtype)


def save_drafter(drafter: Drafter, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a drafter directory that vLLM loads under method `eagle3`, or `eagle` for EAGLE-1,
    whose head is the target's and is not written."""
    state = drafter.state_dict()
    if drafter.config.eagle1:
        named = {name.replace("midlayer.", "layers.0.", 1): t for name, t in state.items()}
        state = {name: t for name, t in named.items() if not name.startswith("lm_head.")}
    _write(path, to_hf(drafter.config), state, dtype)


def _fields(path: Path) -> dict[str, Any]:
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
    (path / "config.json").write_text(strict_json.dumps(fields, indent=1) + "\n", encoding="utf-8")
