"""What a `config.json` says about a target or a drafter, in the fields that vLLM reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BOS_ID, EOS_ID, PAD_ID = 0, 4, 5


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

    @classmethod
    def from_hf(cls, fields: dict[str, Any]) -> DecoderConfig:
        """Read the fields of a parsed `config.json`; others are ignored."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__})

    def to_hf(self) -> dict[str, Any]:
        """The fields common to the `config.json` of a target and of a drafter."""
        sizes = {name: getattr(self, name) for name in self.__dataclass_fields__}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """An EAGLE-3 drafter; `fc_norm` and `norm_output` together make it EAGLE-3.1.

    `aux_layers` are the target layers whose output is captured, counted from 1 (0 is the
    embedding). `fc_norm` is one RMSNorm per captured layer ahead of `fc`. `norm_output` feeds the
    post-norm hidden state to the next depth instead of the residual stream. Source: the EAGLE-3.1
    fields of vLLM's `eagle3` method.
    """

    layer: DecoderConfig
    aux_layers: tuple[int, ...] = (1, 2, 3)
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def from_hf(cls, fields: dict[str, Any]) -> DrafterConfig:
        """Read a parsed `config.json`; absent norm flags mean EAGLE-3."""
        return cls(
            layer=DecoderConfig.from_hf(fields),
            aux_layers=tuple(fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"]),
            fc_norm=bool(fields.get("fc_norm", False)),
            norm_output=bool(fields.get("norm_output", False)),
        )

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` of the drafter.

        The auxiliary layers are always written: vLLM's default for them collapses on a target of
        few layers.
        """
        aux = list(self.aux_layers)
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            **self.layer.to_hf(),
            "draft_vocab_size": self.layer.vocab_size,
            "tie_word_embeddings": False,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "eagle_aux_hidden_state_layer_ids": aux,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": aux, "use_aux_hidden_state": True},
        }
