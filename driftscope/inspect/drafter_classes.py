"""Drafter classes that vLLM 0.32 registers, and what is known about the files of each: one table.

A row says how its tensors are named and which sizes they have; `docs/inspect.md` shows which class
is checked. To add a class, add its row to `CLASSES`, and the targets that it drafts for to
`TARGETS`. Sources: vLLM's model_executor/models/registry.py, config/speculative.py
(hf_config_override), transformers_utils/configs (eagle.py, speculators/algos.py), and the module
that a row names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """Kind of decoder layer that a drafter has."""

    LLAMA = "Llama"
    QWEN3 = "Qwen3"
    MLA = "DeepSeek, latent attention"
    EAGLE1 = "Llama, of EAGLE-1"
    MTP = "of the target that it is part of"
    TABLE = "as the table of classes lists it"


class Coverage(StrEnum):
    """How much of a drafter's config and weights is compared."""

    CHECKED = "checked"
    PARTLY = "partly checked"
    UNKNOWN = "layout not known"


Sizes = tuple[str, ...]
"""Names of the sizes of a tensor's dimensions; see checks.tensors.sizes_by_name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """Names of a family's heads. A tensor's name is cut into the number of its head, if the family
    numbers them, and the rest."""

    family: str
    pattern: str
    """Regular expression of a head's tensors, with the groups `head` and `rest`, and `part` if a
    name has a part of the rest before the number."""
    norms: tuple[str, ...]
    """Norms that every head has, [H] each."""
    projections: Mapping[str, int]
    """Matrices that read embedding and state, and their columns in multiples of H."""
    after_layers: bool = False
    """Whether heads are numbered on from the target's layers."""
    layers_in: str | None = None
    """Field of the config with one letter per layer of a head, for heads of several layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterClass:
    """A row of the table: one class of drafter."""

    name: str
    """Name of the method, for people."""
    architectures: tuple[str, ...]
    """Names in vLLM's registry."""
    source: str = ""
    """Module of vLLM that the facts are from."""
    family: Family | None = None
    """None: nothing is known about its files."""
    layout: MtpLayout | None = None
    tensors: Mapping[str, Sizes] | None = None
    """Tensors that it needs, by name; `{layer}` and `{head}` stand for each number."""
    optional: Mapping[str, Sizes] | None = None
    unchecked: str = ""
    """Parts that are not compared, for a class that is partly checked."""
    parallel: bool = False
    """Whether it drafts all tokens at once, so that it has a mask token and is not run."""

    @property
    def coverage(self) -> Coverage:
        """How much is compared."""
        if self.family is None:
            return Coverage.UNKNOWN
        return Coverage.PARTLY if self.unchecked else Coverage.CHECKED


_BODY = r"^(?:(?:model\.)?language_model\.)?(?:model\.)?"
_ENTRY = ("enorm.weight", "hnorm.weight")
_JOINED = {"eh_proj.weight": 2}
MIMO = "MiMo"
"""Family whose heads the reference drafter runs."""


def _mtp(layout: MtpLayout, source: str, *architectures: str) -> DrafterClass:
    return DrafterClass(
        name=f"MTP heads, {layout.family}",
        architectures=architectures,
        source=source,
        family=Family.MTP,
        layout=layout,
        unchecked="the layers of the heads",
    )


_LAYER: dict[str, Sizes] = {
    "layers.{layer}.input_layernorm.weight": ("hidden",),
    "layers.{layer}.self_attn.q_proj.weight": ("queries", "hidden"),
    "layers.{layer}.self_attn.k_proj.weight": ("keys", "hidden"),
    "layers.{layer}.self_attn.v_proj.weight": ("keys", "hidden"),
    "layers.{layer}.self_attn.o_proj.weight": ("hidden", "queries"),
    "layers.{layer}.self_attn.q_norm.weight": ("head_dim",),
    "layers.{layer}.self_attn.k_norm.weight": ("head_dim",),
    "layers.{layer}.post_attention_layernorm.weight": ("hidden",),
    "layers.{layer}.mlp.gate_proj.weight": ("inner", "hidden"),
    "layers.{layer}.mlp.up_proj.weight": ("inner", "hidden"),
    "layers.{layer}.mlp.down_proj.weight": ("hidden", "inner"),
}
_DFLASH: dict[str, Sizes] = {
    "fc.weight": ("hidden", "captured"),
    "hidden_norm.weight": ("hidden",),
    "norm.weight": ("hidden",),
    **_LAYER,
}
_VOCABULARY: dict[str, Sizes] = {
    "embed_tokens.weight": ("vocab", "hidden"),
    "lm_head.weight": ("draft_vocab", "hidden"),
    "d2t": ("draft_vocab",),
    "t2d": ("vocab",),
    "layers.{layer}.self_attn.q_proj.bias": ("queries",),
    "layers.{layer}.self_attn.k_proj.bias": ("keys",),
    "layers.{layer}.self_attn.v_proj.bias": ("keys",),
    "layers.{layer}.self_attn.o_proj.bias": ("hidden",),
    "layers.{layer}.self_attn.attention_sink_bias": ("heads",),
}
_MARKOV: dict[str, Sizes] = {
    "markov_head.markov_w1.weight": ("vocab", "rank"),
    "markov_head.markov_w2.weight": ("draft_vocab", "rank"),
}
_EAGLE3_SOURCE = "llama_eagle3.py"

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
        source=_EAGLE3_SOURCE,
        family=Family.LLAMA,
    ),
    DrafterClass(
        name="EAGLE-3",
        architectures=("Eagle3Qwen3ForCausalLM",),
        source="qwen3_eagle3.py",
        family=Family.QWEN3,
    ),
    DrafterClass(
        name="EAGLE-3",
        architectures=("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"),
        source="deepseek_eagle3.py",
        family=Family.MLA,
    ),
    DrafterClass(
        name="P-EAGLE",
        architectures=("PEagleDraftModel", "PeagleLlamaForCausalLM"),
        source=_EAGLE3_SOURCE,
        family=Family.LLAMA,
        parallel=True,
    ),
    DrafterClass(
        name="P-EAGLE",
        architectures=("PeagleQwen3ForCausalLM",),
        source="qwen3_eagle3.py",
        family=Family.QWEN3,
        parallel=True,
    ),
    DrafterClass(
        name="EAGLE-1 or EAGLE-2",
        architectures=("EagleLlamaForCausalLM",),
        source="llama_eagle.py",
        family=Family.EAGLE1,
    ),
    DrafterClass(
        name="EAGLE-1 or EAGLE-2 with another layer than Llama's",
        architectures=(
            "EagleCohereForCausalLM",
            "EagleDeepSeekMTPModel",
            "EagleLlama4ForCausalLM",
            "EagleMiniCPMForCausalLM",
            "EagleMistralForCausalLM",
            "EagleMistralLarge3ForCausalLM",
        ),
    ),
    DrafterClass(
        name="DFlash",
        architectures=(
            "DFlashDraftModel",
            "DFlashMuseGlimmerAssistantModel",
            "MuseGlimmerAssistantModel",
        ),
        source="qwen3_dflash.py",
        family=Family.TABLE,
        tensors=_DFLASH,
        optional=_VOCABULARY,
        parallel=True,
    ),
    DrafterClass(
        name="DFlash2",
        architectures=("DFlash2DraftModel",),
        source="qwen3_dflash2.py",
        family=Family.TABLE,
        tensors=_DFLASH,
        optional=_VOCABULARY,
        unchecked="its convolution and its selector",
        parallel=True,
    ),
    DrafterClass(
        name="DFlash of another layout",
        architectures=("DFlashLagunaForCausalLM", "LiLiCorrDraftModel"),
        parallel=True,
    ),
    DrafterClass(
        name="DSpark",
        architectures=("Qwen3DSparkModel", "Qwen3OmniDSparkModel"),
        source="qwen3_dspark.py",
        family=Family.TABLE,
        tensors={**_DFLASH, **_MARKOV},
        optional=_VOCABULARY,
        unchecked="its confidence head",
        parallel=True,
    ),
    DrafterClass(
        name="DSpark of another layout",
        architectures=(
            "DSparkDraftModel",
            "DSparkV41DraftModel",
            "Gemma4DSparkModel",
            "K3DSparkModel",
        ),
        parallel=True,
    ),
    DrafterClass(
        name="Medusa",
        architectures=("MedusaModel",),
        source="medusa.py",
        family=Family.TABLE,
        tensors={
            "blocks.{head}.layers.{layer}.weight": ("hidden", "hidden"),
        },
        optional={
            "blocks.{head}.layers.{layer}.bias": ("hidden",),
            "lm_heads.{head}.weight": ("vocab", "hidden"),
            "lm_head.weight": ("truncated_vocab", "hidden"),
            "token_map": ("truncated_vocab",),
        },
    ),
    DrafterClass(
        name="Gemma 4 assistant",
        architectures=("Gemma4MTPModel",),
        source="gemma4_mtp.py",
        family=Family.TABLE,
        tensors={"embed_tokens.weight": ("vocab", "hidden")},
        optional={},
        unchecked="its layers, and its projections from and to the target's width",
    ),
    _mtp(
        MtpLayout(
            family="MiMo-V2",
            pattern=_BODY + r"mtp\.layers\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=(*_ENTRY, "final_layernorm.weight"),
            projections=_JOINED,
        ),
        "mimo_v2_mtp.py",
        "MiMoV2MTPModel",
        "MiMoV2OmniMTPModel",
    ),
    _mtp(
        MtpLayout(
            family="Qwen3-Next, Qwen3.5, EXAONE",
            pattern=_BODY + r"mtp\.(?:layers\.(?P<head>\d+)\.)?(?P<rest>.+)$",
            norms=("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight"),
            projections={"fc.weight": 2},
        ),
        "qwen3_next_mtp.py, qwen3_5_mtp.py, exaone_moe_mtp.py, exaone4_5_mtp.py",
        "Qwen3NextMTP",
        "Qwen3_5MTP",
        "Qwen3_5MoeMTP",
        "ExaoneMoeMTP",
        "Exaone4_5_MTP",
    ),
    _mtp(
        MtpLayout(
            family=MIMO,
            pattern=_BODY + r"mtp_layers\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=(
                "token_layernorm.weight",
                "hidden_layernorm.weight",
                "final_layernorm.weight",
            ),
            projections={"input_proj.weight": 2},
        ),
        "mimo_mtp.py",
        "MiMoMTPModel",
    ),
    _mtp(
        MtpLayout(
            family="ERNIE 4.5",
            pattern=_BODY + r"mtp_(?P<part>[a-z_]+)\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=("emb_norm.weight", "hidden_norm.weight"),
            projections={"linear_proj.weight": 2},
        ),
        "ernie_mtp.py",
        "ErnieMTPModel",
    ),
    _mtp(
        MtpLayout(
            family="DeepSeek, GLM",
            pattern=_BODY + r"layers\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=_ENTRY,
            projections=_JOINED,
            after_layers=True,
        ),
        "deepseek_mtp.py, glm4_moe_mtp.py, glm_ocr_mtp.py, openpangu_mtp.py, step3p5_mtp.py, "
        "hy_v3_mtp.py, bailing_moe_mtp.py",
        "DeepSeekMTPModel",
        "DeepseekV32MTPModel",
        "Glm4MoeMTPModel",
        "Glm4MoeLiteMTPModel",
        "GlmOcrMTPModel",
        "OpenPanguMTPModel",
        "Step3p5MTP",
        "HYV3MTPModel",
        "BailingMoeV25MTPModel",
        "BailingMoeV3MTPModel",
    ),
    _mtp(
        MtpLayout(
            family="DeepSeek-V4",
            pattern=_BODY + r"mtp\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=_ENTRY,
            projections={"e_proj.weight": 1, "h_proj.weight": 1},
        ),
        "models/deepseek_v4/nvidia/mtp.py",
        "DeepSeekV4MTPModel",
    ),
    _mtp(
        MtpLayout(
            family="LongCat-Flash",
            pattern=_BODY + r"mtp\.(?:layers\.(?P<head>\d+)\.)?(?P<rest>.+)$",
            norms=("enorm.m.weight", "hnorm.m.weight", "norm.weight"),
            projections=_JOINED,
        ),
        "longcat_flash_mtp.py",
        "LongCatFlashMTPModel",
    ),
    _mtp(
        MtpLayout(
            family="Nemotron-H",
            pattern=_BODY + r"mtp\.layers\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=(*_ENTRY, "final_layernorm.weight"),
            projections=_JOINED,
            layers_in="mtp_hybrid_override_pattern",
        ),
        "nemotron_h_mtp.py",
        "NemotronHMTPModel",
    ),
    _mtp(
        MtpLayout(
            family="MiniMax-M3",
            pattern=_BODY + r"mtp\.layers\.(?P<head>\d+)\.(?P<rest>.+)$",
            norms=(*_ENTRY, "final_layernorm.weight"),
            projections=_JOINED,
        ),
        "models/minimax_m3/nvidia/mtp.py",
        "MiniMaxM3MTP",
    ),
    DrafterClass(
        name="MTP heads of another layout",
        architectures=(
            "Dots3NoteMTPModel",
            "Glm5NextMTPModel",
            "HYV4MTPModel",
            "InklingMTPModel",
            "InternS2MobiusMTP",
            "KimiK3MTPModel",
            "Qwen4ExpMTP",
        ),
    ),
    DrafterClass(name="no drafter: stores states", architectures=("ExtractHiddenStatesModel",)),
)
"""The table. A class of vLLM that is in no row is unknown."""
_BY_ARCHITECTURE = {name: row for row in CLASSES for name in row.architectures}

TARGETS: Mapping[str, tuple[str, ...]] = {
    "DeepSeekMTPModel": ("deepseek_v3", "deepseek_mtp", "DeepseekV3ForCausalLM"),
    "DeepseekV32MTPModel": ("deepseek_v32", "glm_moe_dsa", "DeepseekV32ForCausalLM"),
    "DeepSeekV4MTPModel": ("deepseek_v4", "DeepseekV4ForCausalLM"),
    "Dots3NoteMTPModel": ("dots3_note", "dots3_note_mtp"),
    "OpenPanguMTPModel": ("pangu_ultra_moe", "pangu_ultra_moe_mtp"),
    "KimiK3MTPModel": ("kimi_k3", "kimi_k3_mtp"),
    "MiMoMTPModel": ("MiMoForCausalLM",),
    "MiMoV2MTPModel": ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"),
    "MiMoV2OmniMTPModel": ("MiMoV2OmniForCausalLM",),
    "Glm4MoeMTPModel": ("Glm4MoeForCausalLM",),
    "Glm4MoeLiteMTPModel": ("Glm4MoeLiteForCausalLM",),
    "GlmOcrMTPModel": ("GlmOcrForConditionalGeneration",),
    "ErnieMTPModel": ("ernie4_5_moe", "ernie_mtp"),
    "NemotronHMTPModel": ("nemotron_h", "nemotron_h_puzzle", "nemotron_h_mtp"),
    "Qwen3NextMTP": ("qwen3_next", "qwen3_next_mtp", "Qwen3NextForCausalLM"),
    "Qwen4ExpMTP": ("qwen4_exp", "qwen4_exp_text", "qwen4_exp_mtp"),
    "BailingMoeV25MTPModel": ("bailing_hybrid", "bailing_hybrid_mtp", "BailingMoeV2_5ForCausalLM"),
    "BailingMoeV3MTPModel": ("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"),
    "ExaoneMoeMTP": ("exaone_moe", "exaone_moe_mtp"),
    "Exaone4_5_MTP": ("exaone4_5", "exaone4_5_mtp"),
    "Qwen3_5MTP": (
        "qwen3_5",
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
    ),
    "Qwen3_5MoeMTP": (
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    "InternS2MobiusMTP": ("interns2_mobius",),
    "LongCatFlashMTPModel": ("longcat_flash", "longcat_flash_mtp", "LongcatFlashForCausalLM"),
    "Step3p5MTP": (
        "step3p5",
        "step3p7",
        "step3p5_mtp",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    ),
    "HYV3MTPModel": ("hy_v3", "hy_v3_mtp"),
    "HYV4MTPModel": ("hy_v4", "hy_v4_mtp"),
    "InklingMTPModel": ("inkling_mm_model", "inkling_model", "inkling_mtp"),
    "Gemma4MTPModel": (
        "gemma4_assistant",
        "gemma4_unified_assistant",
        "gemma4_mtp",
        "Gemma4AssistantForCausalLM",
    ),
    "MiniMaxM3MTP": (
        "minimax_m3_vl",
        "minimax_m3_mtp",
        "MiniMaxM3SparseForConditionalGeneration",
    ),
    "Glm5NextMTPModel": ("glm5_next", "glm5_next_mtp"),
}
"""Class that drafts for a target -> names of the target's architecture or model type, by which vLLM
converts its config (SpeculativeConfig.hf_config_override)."""
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
    if method is None and first in _BY_ARCHITECTURE:
        if first.startswith(_PARALLEL_EAGLE):
            return first
        method = method_of(first)
    if method == "medusa" or (not first and model == "medusa"):
        return "MedusaModel"
    of_target = _DRAFTER_OF.get(model)
    if method in (None, "mtp"):
        of_target = _DRAFTER_OF.get(first) or of_target
        if of_target is not None and first not in _BY_ARCHITECTURE:
            return of_target
    if not first:
        return None
    if method in _PREFIXES:
        return _prefixed(_CONVERTED.get(first) or of_target or first, method)
    if first == "DSparkDraftModel" and model == "qwen3":
        return "Qwen3DSparkModel"
    return IN_SGLANG.get(first, first) if method is None else first


_CONVERTED = {"MistralLarge3ForCausalLM": "EagleMistralLarge3ForCausalLM"}
"""Architecture -> the one that vLLM reads instead (SpeculativeConfig.hf_config_override)."""


def _prefixed(name: str, method: str) -> str:
    """Return an architecture with the method in front, as vLLM's EAGLEConfig writes it."""
    prefix = _PREFIXES[method]
    there = name.startswith(prefix) or (method != "eagle" and name.endswith(prefix))
    return name if there or name in _AS_NAMED else f"{prefix}{name}"


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


def coverage_table(registered: Iterable[str]) -> dict[Coverage, list[str]]:
    """Return the drafter classes that an engine registers, by how much of their files is checked.
    Classes in no row of the table are unknown."""
    table: dict[Coverage, list[str]] = {coverage: [] for coverage in Coverage}
    for architecture in sorted(registered):
        row = row_of(architecture)
        table[Coverage.UNKNOWN if row is None else row.coverage].append(architecture)
    return table


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


def mask_token(fields: Mapping[str, Any]) -> Any:
    """Return the id of the token that stands for one to be drafted; None if the config has none."""
    names = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
    nested = (_nested(fields, "dflash_config"), _nested(fields, "eagle_config"))
    values = (place.get(name) for place in (*nested, fields) for name in names)
    return next((value for value in values if value is not None), None)
