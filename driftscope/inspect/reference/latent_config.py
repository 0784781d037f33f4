"""Sizes of multi-head latent attention, as `config.json` gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        return cls(**sizes, scale=_scale(fields))

    def to_hf(self) -> dict[str, Any]:
        """Return the sizes as fields of a `config.json`."""
        names = (name for name in self.__dataclass_fields__ if name != "scale")
        return {name: getattr(self, name) for name in names}


def _scale(fields: Mapping[str, Any]) -> float:
    """Return the square of YaRN's temperature, as vLLM's DeepseekV2MLAAttention does."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    factor, share = float(rope.get("factor", 1.0)), float(rope.get("mscale_all_dim") or 0.0)
    return (0.1 * share * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
