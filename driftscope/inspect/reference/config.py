"""The fields of a target's or drafter's `config.json` that vLLM reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from driftscope.inspect.drafter_classes import engine_fields

LATENT_DRAFTER = "Eagle3DeepseekV2ForCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Sizes of latent attention (DeepSeek-V2, arXiv 2405.04434), named as in `config.json`."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    """Part of a head's queries and keys that is not rotated."""
    qk_rope_head_dim: int
    v_head_dim: int
    scale: float = 1.0
    """Factor on 1 / sqrt(size of a head) that scaled rotary positions ask for."""

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> LatentConfig:
        """Read the fields of a parsed `config.json`. Raises KeyError for a size that is absent."""
        sizes = {name: int(fields[name]) for name in cls.__dataclass_fields__ if name != "scale"}
        rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        factor, share = float(rope.get("factor", 1.0)), float(rope.get("mscale_all_dim") or 0.0)
        # The square of YaRN's temperature, as in vLLM's DeepseekV2MLAAttention.
        scale = (0.1 * share * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
        return cls(**sizes, scale=scale)


BOS_ID, EOS_ID, PAD_ID = 0, 4, 5
_AUX = "eagle_aux_hidden_state_layer_ids"
_STATES = 3
"""Number of captured layers of a drafter whose config names none."""
DEFAULT_N_SINK = 4
"""Number of slots counted as sink unless the data shows another sink set."""
LLAMA_DRAFTER, QWEN3_DRAFTER = "LlamaForCausalLMEagle3", "Eagle3Qwen3ForCausalLM"
EAGLE1_DRAFTER = "EagleLlamaForCausalLM"
FINAL_STATE = -1
"""Stands among captured layers for the target's last state after its final norm, which an EAGLE-1
drafter reads, and in SGLang an MTP head; vLLM gives that the output of the last layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a Llama decoder: grouped-query attention, SwiGLU, RMSNorm, rotary positions."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    partial_rotary_factor: float = 1.0
    """Share of each head that rotary positions turn; the rest of a head keeps its numbers."""

    @classmethod
    def from_hf(cls, fields: dict[str, Any]) -> DecoderConfig:
        """Read the fields of a parsed `config.json`; others are ignored.

        Raises KeyError for a size that has no usual value, and ValueError for a share of rotated
        numbers that vLLM refuses.
        """
        # The values that transformers' LlamaConfig gives to absent sizes.
        heads = fields.get("num_attention_heads")
        usual = {
            "num_key_value_heads": heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
        }
        if heads and fields.get("hidden_size"):
            usual["head_dim"] = fields["hidden_size"] // heads
        theta = (fields.get("rope_parameters") or {}).get("rope_theta")
        share = {"partial_rotary_factor": rotary_share(fields)}
        known = {**usual, **fields, **(share if theta is None else {"rope_theta": theta, **share})}
        if not 0 < known["partial_rotary_factor"] <= 1:
            raise ValueError("partial_rotary_factor is not above 0 and at most 1")
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """An EAGLE-3 drafter; with both `fc_norm` and `norm_output` it is an EAGLE-3.1 drafter, with
    `eagle1` an EAGLE-1 or EAGLE-2 drafter, with `mtp` a head for multi-token prediction as MiMo's.

    Source: the fields that vLLM's methods `eagle3`, `eagle` and `mtp` read, and the meaning of
    their absence there.
    """

    layer: DecoderConfig
    """Sizes of the drafter itself; `num_hidden_layers` is its number of layers."""
    aux_layers: tuple[int, ...] = (1, 2, 3)
    """Target layers whose output is captured, counted from 1 (0 is the embedding); see also
    FINAL_STATE."""
    names_aux_layers: bool = True
    """Whether `config.json` names the captured layers. The config of most published drafters does
    not, and vLLM then captures its default layers, see `default_aux_layers`."""
    fc_norm: bool = False
    """Whether each captured layer passes an RMSNorm before `fc`."""
    norm_before_fc: bool = False
    """Whether the concatenated captured layers pass one RMSNorm before `fc` and `fc_norm`."""
    norm_before_residual: bool = False
    """Whether the residual stream starts from the normed hidden state, not the input state."""
    norm_output: bool = False
    """Whether the next depth gets the post-norm hidden state, not the residual stream."""
    qk_norm: bool = False
    """Whether each head's queries and keys pass an RMSNorm before the rotation, as in Qwen3."""
    draft_vocab_size: int | None = None
    """Size of the drafter's vocabulary if it is smaller than the target's; None: the same size."""
    target_hidden_size: int | None = None
    """The target's hidden size if it differs; the drafter then has its own embedding."""
    eagle1: bool = False
    """Whether `fc` reads the embedding and one state at every depth, and there are no norms but
    those inside the layers, of which the first has none at its input."""
    fc_bias: bool = False
    """Whether the `fc` of an EAGLE-1 drafter has a bias, as in SGLang."""
    mtp: bool = False
    """Whether `fc` reads the normed state and the normed embedding at every depth, and what the
    final norm returns is fed to the next depth."""
    attention_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the projection of attention's output has a bias."""
    mlp_bias: bool = False
    """Whether the projections of the MLP have biases."""
    latent: LatentConfig | None = None
    """Sizes of latent attention, with which `layer.head_dim` is the rotated part of a head; None:
    grouped-query attention."""

    @property
    def aux_size(self) -> int:
        """Width of one captured state."""
        return self.target_hidden_size or self.layer.hidden_size

    @property
    def reads_final_state(self) -> bool:
        """Whether it reads the target's last state, and its own at later depths, not captured
        layers."""
        return self.eagle1 or self.mtp

    @classmethod
    def from_hf(cls, fields: dict[str, Any], target_layers: int | None = None) -> DrafterConfig:
        """Read a parsed `config.json`; absent norm flags mean EAGLE-3.

        `target_layers` is the target's number of layers, which determines vLLM's default layers.
        Raises KeyError for a config that names no auxiliary layers if it is not given.
        """
        if fields.get("architectures") == [EAGLE1_DRAFTER]:
            return cls.eagle1_from_hf(fields)
        if "speculators_model_type" in fields:
            fields = engine_fields(fields)
        eagle = fields.get("eagle_config") or {}
        plain = {LLAMA_DRAFTER, "Eagle3LlamaForCausalLM", QWEN3_DRAFTER}.intersection(
            fields.get("architectures") or ()
        )
        is_latent = fields.get("kv_lora_rank") and not plain
        latent = LatentConfig.from_hf(fields) if is_latent else None
        layer = DecoderConfig.from_hf(fields)
        if latent:
            layer = replace(layer, head_dim=latent.qk_rope_head_dim)
        named = fields.get(_AUX) or eagle.get(_AUX)
        if not named and target_layers is None:
            raise KeyError(_AUX)
        return cls(
            layer=layer,
            aux_layers=tuple(named) if named else default_aux_layers(target_layers or 0),
            names_aux_layers=bool(named),
            norm_before_fc=bool(eagle.get("norm_before_fc", fields.get("norm_before_fc", False))),
            qk_norm=fields.get("architectures") == [QWEN3_DRAFTER],
            **_biases(fields),
            draft_vocab_size=_unless(fields.get("draft_vocab_size"), layer.vocab_size),
            target_hidden_size=_unless(fields.get("target_hidden_size"), layer.hidden_size),
            latent=latent,
            **{
                flag: bool(fields.get(flag, False))
                for flag in ("fc_norm", "norm_before_residual", "norm_output")
            },
        )

    @classmethod
    def eagle1_from_hf(cls, fields: dict[str, Any]) -> DrafterConfig:
        """Read a parsed `config.json` of an EAGLE-1 drafter, whatever architecture it names: that
        of the EAGLE repository is its target's. Raises KeyError for a size that is missing."""
        layer = DecoderConfig.from_hf(fields)
        return cls(
            layer=layer,
            aux_layers=(FINAL_STATE,),
            names_aux_layers=False,
            eagle1=True,
            **_biases(fields),
        )

    @classmethod
    def mtp_from_hf(cls, fields: dict[str, Any], *, attention_bias: bool) -> DrafterConfig:
        """Read a parsed `config.json` of a target with MTP heads as MiMo's, whose head has layers
        of the same shape. It reads what vLLM gives it, the target's last layer before the final
        norm (MiMoModel in vllm/model_executor/models/mimo.py 0.32). Raises KeyError for a size that
        is missing."""
        return cls(
            layer=replace(DecoderConfig.from_hf(fields), num_hidden_layers=1),
            aux_layers=(DecoderConfig.from_hf(fields).num_hidden_layers,),
            names_aux_layers=False,
            norm_output=True,
            mtp=True,
            attention_bias=attention_bias,
        )


def default_aux_layers(target_layers: int) -> tuple[int, ...]:
    """Return the layers that vLLM captures if a drafter's config names none.

    Source: vllm.model_executor.models.interfaces, 0.27 to 0.32. Raises ValueError for a target with
    too few layers to give three different ones.
    """
    layers = tuple(sorted({2, target_layers // 2, target_layers - 3}))
    if len(layers) != _STATES or layers[0] < 1:
        raise ValueError(f"vLLM's default layers of a target of {target_layers} are not three")
    return layers


def _biases(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return which biases vLLM's layers have: Qwen3's have none but attention's inputs."""
    attention = bool(fields.get("attention_bias"))
    if fields.get("architectures") == [QWEN3_DRAFTER]:
        return {"attention_bias": attention}
    mlp = bool(fields.get("mlp_bias"))
    return {"attention_bias": attention, "output_bias": attention, "mlp_bias": mlp}


ROTARY_SHARE = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
"""Names of the share of a head that is rotated, in the order in which vLLM takes them
(patch_rope_parameters in vllm/transformers_utils/config.py 0.32)."""


def rotary_share(fields: Mapping[str, Any]) -> float:
    """Return the share of each head that rotary positions turn."""
    nested = fields.get("rope_parameters")
    places = (nested if isinstance(nested, dict) else {}, fields)
    found = (place.get(name) for name in ROTARY_SHARE for place in places)
    return float(next((share for share in found if isinstance(share, int | float)), 1.0))


def _unless(value: int | None, usual: int) -> int | None:
    """Return `value`, or None if it equals the usual one."""
    return None if value == usual else value


_OF_MIMO = {"input_proj.": "fc.", "final_layernorm.": "norm."}
"""Prefix of a name in a checkpoint of MiMo -> prefix in the reference drafter."""
_KEPT = ("token_layernorm.", "hidden_layernorm.")


def reference_name_of_mimo(name: str) -> str:
    """Return the name in the reference drafter of a tensor of MiMo's head, whose name in a
    checkpoint follows the prefix `model.mtp_layers.0.`."""
    if name.startswith(_KEPT):
        return name
    for prefix, ours in _OF_MIMO.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return f"midlayer.{name}"
