"""Types and bounds of the fields of a checkpoint's config, checked once, where the file is read.

A config may come from anyone. Behind `checked_fields` a field of the table is absent, of its type
and within its bound, wherever it stands, so that no other code asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.boundary.bounds import MAX_HEADS, MAX_K, MAX_LAYERS, MAX_TEXT_CHARS, MAX_TOKENS
from driftscope.boundary.strict_json import dumps

_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """Type of a field."""

    wanted: str
    """Words for what is valid."""
    fits: Callable[[Any], bool]


def _whole(most: int, least: int = 0) -> FieldKind:
    """Return the kind of a whole number; configs of layers of several kinds have a list of them."""

    def fits(value: Any) -> bool:
        values = value if isinstance(value, list) else [value]
        return len(values) <= MAX_LAYERS and all(
            type(one) is int and least <= one <= most for one in values
        )

    return FieldKind(wanted=f"a whole number from {least} to {most}", fits=fits)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, str) and len(one) <= MAX_TEXT_CHARS for one in value
    )


_SIZE, _HEADS, _LAYERS = _whole(MAX_TOKENS), _whole(MAX_HEADS), _whole(MAX_LAYERS)
_DRAFTED = _whole(MAX_K // 8)
_NUMBER = FieldKind(wanted="a number", fits=lambda value: type(value) in (int, float))
_LAYER_IDS = FieldKind(
    wanted="a list of whole numbers",
    fits=lambda value: isinstance(value, list) and _whole(MAX_LAYERS, -MAX_LAYERS).fits(value),
)
_OBJECT = FieldKind(wanted="an object", fits=lambda value: isinstance(value, dict))
_TEXT = FieldKind(wanted="a text", fits=lambda value: isinstance(value, str))
_NAMES = FieldKind(wanted="a list of texts", fits=_texts)

FIELDS: Mapping[str, FieldKind] = {
    **dict.fromkeys(
        (
            *("hidden_size", "target_hidden_size", "backbone_hidden_size", "intermediate_size"),
            *("vocab_size", "draft_vocab_size", "truncated_vocab_size", "head_dim", "markov_rank"),
            *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
            "max_position_embeddings",
        ),
        _SIZE,
    ),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), _HEADS),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "num_aux_hidden_states", "num_nextn_predict_layers"),
            *("mtp_num_hidden_layers", "num_mtp_modules"),
        ),
        _LAYERS,
    ),
    **dict.fromkeys(("num_heads", "medusa_num_heads", "medusa_num_layers"), _DRAFTED),
    **dict.fromkeys(
        (
            *("rms_norm_eps", "rope_theta", "partial_rotary_factor", "rotary_pct"),
            *("rotary_emb_fraction", "factor", "mscale", "mscale_all_dim", "attention_factor"),
            *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
            "original_max_position_embeddings",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "layer_ids"),
            *("target_layer_ids", "dspark_target_layer_ids"),
        ),
        _LAYER_IDS,
    ),
    **dict.fromkeys(
        (
            *("eagle_config", "dflash_config", "transformer_layer_config", "text_config"),
            *("rope_scaling", "rope_parameters"),
        ),
        _OBJECT,
    ),
    **dict.fromkeys(("model_type", "speculators_model_type", "rope_type"), _TEXT),
    **dict.fromkeys(
        (
            *("architectures", "ignore", "exclude_modules", "modules_to_not_convert"),
            *("ignored_layers", "exclude", "llm_int8_skip_modules"),
        ),
        _NAMES,
    ),
}
"""Kind of each field that is read by its name, at whatever place of the config it stands."""


def checked_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without those fields of the table that are null, which means absent.

    Raises ValueError that names the first field of another type or out of its bound.
    """
    fields = {}
    for name, value in content.items():
        kind = FIELDS.get(name)
        if kind is not None and value is None:
            continue
        if kind is not None and not kind.fits(value):
            shown = dumps(value)
            shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
            raise ValueError(f"{name} is {shown}, not {kind.wanted}")
        fields[name] = checked_fields(value) if isinstance(value, dict) else value
    return fields
