"""Drafter classes that vLLM 0.32 registers, and what is known here about the files of each.

Names and shapes of tensors are known of the EAGLE family alone; of other classes an installed
engine checks them (`engine_loading`). A class without a row needs none: what it drafts for stands
in `TARGETS`. Sources: vLLM's model_executor/models/registry.py, config/speculative.py
(hf_config_override), transformers_utils/configs (eagle.py, speculators/algos.py), and the module
that a row names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """A family of drafters whose files are known."""

    LLAMA = "Llama"
    QWEN3 = "Qwen3"
    MLA = "DeepSeek, latent attention"
    EAGLE1 = "Llama, of EAGLE-1"
    MTP = "heads of the target that it is part of"
    BLOCKS = "all tokens at once, from captured layers"
    HEADS = "heads on the target's last state"


class Coverage(StrEnum):
    """How much of a drafter's config and weights is compared."""

    CHECKED = "checked"
    PARTLY = "partly checked"
    UNKNOWN = "layout not known"


UNCHECKED = "names and shapes of its tensors: install vLLM or SGLang beside driftscope"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterClass:
    """A row of the table: one class of drafter."""

    name: str
    """Name of the method, for people."""
    architectures: tuple[str, ...]
    """Names in vLLM's registry."""
    family: Family
    source: str = ""
    """Module of vLLM that the facts are from."""
    marks: tuple[str, ...] = ()
    """Tensors by which a checkpoint of an unknown class is near to this one."""
    parallel: bool = False
    """Whether it drafts all tokens at once, so that it has a mask token and is not run."""

    @property
    def unchecked(self) -> str:
        """Parts that are not compared without an engine; "" if all are."""
        return "" if self.family in KNOWN_LAYOUTS else UNCHECKED

    @property
    def coverage(self) -> Coverage:
        """How much is compared without an engine."""
        return Coverage.PARTLY if self.unchecked else Coverage.CHECKED


KNOWN_LAYOUTS = (Family.LLAMA, Family.QWEN3, Family.MLA, Family.EAGLE1)
"""Families whose tensors are known by name and shape."""
MIMO = "MiMoMTPModel"
"""Class whose heads the reference drafter runs."""
_EAGLE3_SOURCE = "llama_eagle3.py"
_EAGLE3_MARKS = ("fc.weight", "layers.0.hidden_norm.weight")
_DFLASH_MARKS = ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_proj.weight")

GEMMA4 = "Gemma4MTPModel"

_TARGETS = {
    "DeepSeekMTPModel": "deepseek_v3 deepseek_mtp DeepseekV3ForCausalLM",
    "DeepseekV32MTPModel": "deepseek_v32 glm_moe_dsa DeepseekV32ForCausalLM",
    "DeepSeekV4MTPModel": "deepseek_v4 DeepseekV4ForCausalLM",
    "Dots3NoteMTPModel": "dots3_note dots3_note_mtp",
    "OpenPanguMTPModel": "pangu_ultra_moe pangu_ultra_moe_mtp",
    "KimiK3MTPModel": "kimi_k3 kimi_k3_mtp",
    "MiMoMTPModel": "MiMoForCausalLM",
    "MiMoV2MTPModel": "MiMoV2ForCausalLM MiMoV2FlashForCausalLM",
    "MiMoV2OmniMTPModel": "MiMoV2OmniForCausalLM",
    "Glm4MoeMTPModel": "Glm4MoeForCausalLM",
    "Glm4MoeLiteMTPModel": "Glm4MoeLiteForCausalLM",
    "GlmOcrMTPModel": "GlmOcrForConditionalGeneration",
    "ErnieMTPModel": "ernie4_5_moe ernie_mtp",
    "NemotronHMTPModel": "nemotron_h nemotron_h_puzzle nemotron_h_mtp",
    "Qwen3NextMTP": "qwen3_next qwen3_next_mtp Qwen3NextForCausalLM",
    "Qwen4ExpMTP": "qwen4_exp qwen4_exp_text qwen4_exp_mtp",
    "BailingMoeV25MTPModel": "bailing_hybrid bailing_hybrid_mtp BailingMoeV2_5ForCausalLM",
    "BailingMoeV3MTPModel": "BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration",
    "ExaoneMoeMTP": "exaone_moe exaone_moe_mtp",
    "Exaone4_5_MTP": "exaone4_5 exaone4_5_mtp",
    "Qwen3_5MTP": "qwen3_5 qwen3_5_text Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeMTP": "qwen3_5_moe qwen3_5_moe_text Qwen3_5MoeForCausalLM "
    "Qwen3_5MoeForConditionalGeneration",
    "InternS2MobiusMTP": "interns2_mobius",
    "LongCatFlashMTPModel": "longcat_flash longcat_flash_mtp LongcatFlashForCausalLM",
    "Step3p5MTP": "step3p5 step3p7 step3p5_mtp Step3p5ForCausalLM Step3p7ForConditionalGeneration",
    "HYV3MTPModel": "hy_v3 hy_v3_mtp",
    "HYV4MTPModel": "hy_v4 hy_v4_mtp",
    "InklingMTPModel": "inkling_mm_model inkling_model inkling_mtp",
    GEMMA4: "gemma4_assistant gemma4_unified_assistant gemma4_mtp Gemma4AssistantForCausalLM",
    "MiniMaxM3MTP": "minimax_m3_vl minimax_m3_mtp MiniMaxM3SparseForConditionalGeneration",
    "Glm5NextMTPModel": "glm5_next glm5_next_mtp",
}
TARGETS = {drafter: tuple(names.split()) for drafter, names in _TARGETS.items()}
"""Class that drafts for a target -> names of the target's architecture or model type, by which vLLM
converts its config (SpeculativeConfig.hf_config_override)."""
CLASSES = (
    DrafterClass(
        name="EAGLE-3",
        architectures=(
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3MiniMaxM2ForCausalLM",
            "Eagle3Qwen2_5vlForCausalLM",
            "Eagle3Qwen3vlForCausalLM",
        ),
        family=Family.LLAMA,
        source=_EAGLE3_SOURCE,
        marks=_EAGLE3_MARKS,
    ),
    DrafterClass(
        name="EAGLE-3",
        architectures=("Eagle3Qwen3ForCausalLM",),
        family=Family.QWEN3,
        source="qwen3_eagle3.py",
    ),
    DrafterClass(
        name="EAGLE-3",
        architectures=("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"),
        family=Family.MLA,
        source="deepseek_eagle3.py",
    ),
    DrafterClass(
        name="P-EAGLE",
        architectures=("PEagleDraftModel", "PeagleLlamaForCausalLM"),
        family=Family.LLAMA,
        source=_EAGLE3_SOURCE,
        marks=(*_EAGLE3_MARKS, "mask_hidden"),
        parallel=True,
    ),
    DrafterClass(
        name="P-EAGLE",
        architectures=("PeagleQwen3ForCausalLM",),
        family=Family.QWEN3,
        source="qwen3_eagle3.py",
        parallel=True,
    ),
    DrafterClass(
        name="EAGLE-1 or EAGLE-2",
        architectures=("EagleLlamaForCausalLM",),
        family=Family.EAGLE1,
        source="llama_eagle.py",
        marks=("fc.weight", "layers.0.self_attn.q_proj.weight"),
    ),
    DrafterClass(
        name="DFlash",
        architectures=(
            "DFlashDraftModel",
            "DFlashMuseGlimmerAssistantModel",
            "MuseGlimmerAssistantModel",
        ),
        family=Family.BLOCKS,
        source="qwen3_dflash.py",
        marks=_DFLASH_MARKS,
        parallel=True,
    ),
    DrafterClass(
        name="DFlash2",
        architectures=("DFlash2DraftModel",),
        family=Family.BLOCKS,
        source="qwen3_dflash2.py, qwen3_dflash.py",
        parallel=True,
    ),
    DrafterClass(
        name="DSpark",
        architectures=("Qwen3DSparkModel", "Qwen3OmniDSparkModel"),
        family=Family.BLOCKS,
        source="qwen3_dspark.py, qwen3_dflash.py",
        marks=(*_DFLASH_MARKS, "markov_head.markov_w1.weight"),
        parallel=True,
    ),
    DrafterClass(
        name="Medusa",
        architectures=("MedusaModel",),
        family=Family.HEADS,
        source="medusa.py",
        marks=("blocks.0.layers.0.weight",),
    ),
    DrafterClass(
        name="Gemma 4 assistant",
        architectures=(GEMMA4,),
        family=Family.HEADS,
        source="gemma4_mtp.py",
    ),
    DrafterClass(
        name="MTP heads",
        architectures=tuple(name for name in TARGETS if name != GEMMA4),
        family=Family.MTP,
        source="config/speculative.py",
    ),
)
"""The table. A class of vLLM that is in no row is unknown without an engine."""
_BY_ARCHITECTURE = {name: row for row in CLASSES for name in row.architectures}
SMALL_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **dict.fromkeys(("hidden_size", "vocab_size", "intermediate_size", "head_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1),
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
"""Config of a target that stands in for one that is not given."""
DRAFTS = re.compile("Eagle|MTP|NextN|DFlash|DSpark|LiLiCorr|Medusa|Assistant|Draft")
"""Parts of the names of classes that draft, in vLLM and in SGLang."""
PARALLEL = re.compile("DFlash|DSpark|LiLiCorr")
"""Parts of the names of other classes that draft all tokens at once."""

_DRAFTER_OF = {name: drafter for drafter, names in TARGETS.items() for name in names}

SPECULATORS: Mapping[str, str | Mapping[str, str]] = {
    "eagle3": {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"},
    "peagle": {"llama": "PeagleLlamaForCausalLM", "qwen3": "PeagleQwen3ForCausalLM"},
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
"""Kind of a config in the speculators format -> class; by the kind of its layers for some."""
IN_SGLANG = {"LlamaForCausalLMEagle": "EagleLlamaForCausalLM"}
"""Names that only SGLang knows -> the same class in vLLM."""


AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


def architectures_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the architectures that a config names."""
    named = config.get("architectures")
    return tuple(map(str, named)) if isinstance(named, list | tuple) else ()


IN_THE_TARGET = {
    "deepseek_v4": "DSparkDraftModel",
    "deepseek_v41": "DSparkV41DraftModel",
}
"""Model type of a target that holds a DSpark drafter -> class."""
_PREFIXES = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
"""Method -> what vLLM puts before the name of an architecture that lacks it."""
_AS_NAMED = ("LiLiCorrDraftModel",)
_PARALLEL_EAGLE = ("PEagle", "Peagle")
"""Beginnings of names that vLLM looks up for the speculators format alone."""


def method_of(architecture: str) -> str:
    """Return vLLM's method for a class of its registry."""
    if "Eagle3" in architecture or architecture.startswith(_PARALLEL_EAGLE):
        return "eagle3"
    if architecture.startswith("Eagle"):
        return "eagle"
    if "DSpark" in architecture:
        return "dspark"
    if architecture.startswith(("DFlash", "LiLiCorr", "MuseGlimmer")):
        return "dflash"
    return "medusa" if architecture == "MedusaModel" else "mtp"


def drafter_architecture(config: Mapping[str, Any], method: str | None = None) -> str | None:
    """Return the architecture that vLLM looks up in its registry for a drafter with this config.

    `method` is the method of the speculation config; with None it is that of the class which the
    config names. Returns None if the config names no architecture, or is one of the speculators
    format that vLLM refuses.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        return _of_speculators(config, str(kind))
    named, model = architectures_of(config), str(config.get("model_type"))
    first = named[0] if named else ""
    if "dspark_target_layer_ids" in config and model in IN_THE_TARGET and method != "mtp":
        return IN_THE_TARGET[model]
    if method is None and names_drafter(first):
        if first.startswith(_PARALLEL_EAGLE):
            return first
        method = method_of(first)
    if method == "medusa" or (not first and model == "medusa"):
        return "MedusaModel"
    of_target = _DRAFTER_OF.get(model)
    if method in (None, "mtp"):
        of_target = _DRAFTER_OF.get(first) or of_target
        if of_target is not None and (first in _DRAFTER_OF or not names_drafter(first)):
            return of_target
    if not first:
        return None
    if method in _PREFIXES:
        name = _CONVERTED.get(first) or of_target or first
        prefix = _PREFIXES[method]
        is_drafter = name.startswith(prefix) or (method != "eagle" and name.endswith(prefix))
        return name if is_drafter or name in _AS_NAMED else f"{prefix}{name}"
    if first == "DSparkDraftModel" and model == "qwen3":
        return "Qwen3DSparkModel"
    return IN_SGLANG.get(first, first) if method is None else first


_CONVERTED = {"MistralLarge3ForCausalLM": "EagleMistralLarge3ForCausalLM"}
"""Architecture -> the one that vLLM reads instead (SpeculativeConfig.hf_config_override)."""


def _of_speculators(config: Mapping[str, Any], kind: str) -> str | None:
    found = SPECULATORS.get(kind)
    if kind == "dspark" and "Qwen3OmniDSparkModel" in architectures_of(config):
        return "Qwen3OmniDSparkModel"
    if found is None or isinstance(found, str):
        return found
    layer = config.get("transformer_layer_config")
    model = layer.get("model_type", "llama") if isinstance(layer, dict) else None
    return found.get(str(model))


_COPIED = (
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "mask_token_id",
    "markov_rank",
)
"""Fields of the speculators format that vLLM takes over into those of the layer."""


def engine_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a config as vLLM's drafter reads it: as it is, or converted from the speculators
    format as vLLM converts it.

    In EAGLE-3's form of this format only, an absent `norm_before_residual` means that it is on.
    Captured layers stay at the top level: vLLM writes no `eagle_config`.
    """
    kind = fields.get("speculators_model_type")
    if kind is None:
        return fields
    layer = fields.get("transformer_layer_config") or {}
    aux = fields.get(AUX_LAYERS) or fields.get("aux_hidden_state_layer_ids")
    return {
        **layer,
        **{name: fields[name] for name in _COPIED if fields.get(name) is not None},
        **({AUX_LAYERS: aux} if aux else {}),
        "norm_before_residual": fields.get("norm_before_residual", kind == "eagle3"),
        "architectures": [_of_speculators(fields, str(kind))],
    }


def row_of(architecture: str | None) -> DrafterClass | None:
    """Return the row of a class; None if the table has none."""
    return _BY_ARCHITECTURE.get(architecture or "")


def names_drafter(architecture: str | None) -> bool:
    """Return whether a name is that of a class that drafts."""
    return row_of(architecture) is not None or bool(DRAFTS.search(architecture or ""))


def captured_layers(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the target layers whose outputs a drafter reads, counted from 1 as vLLM counts them;
    None if the config names none. Source: vLLM's get_eagle3_aux_layers_from_config."""
    dflash, eagle = (_nested(fields, name) for name in ("dflash_config", "eagle_config"))
    places: tuple[tuple[Any, int], ...] = (
        (fields.get(AUX_LAYERS), 0),
        (dflash.get("target_layer_ids"), 1),
        (fields.get("dspark_target_layer_ids"), 1),
        (fields.get("target_layer_ids"), 1),
        (dflash.get("layer_ids"), 0),
        (eagle.get("layer_ids"), 0),
    )
    for layers, later in places:
        if isinstance(layers, list | tuple) and layers:
            return tuple(int(layer) + later for layer in layers)
    return None


def _nested(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


MASK_TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Fields with the id of the mask token, in the order in which vLLM looks for it."""


def mask_token(fields: Mapping[str, Any]) -> Any:
    """Return the id of the token that stands for one to be drafted; None if the config has none."""
    nested = (_nested(fields, "dflash_config"), _nested(fields, "eagle_config"))
    values = (place.get(name) for place in (*nested, fields) for name in MASK_TOKENS)
    return next((value for value in values if value is not None), None)
