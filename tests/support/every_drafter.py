"""A tiny checkpoint of every drafter class that vLLM registers: config, target, random weights.

Configs are written by hand. Tensors are those of the class as vLLM builds it for the config
(`driftscope.inspect.vllm_process` says which), under the names of checkpoints: vLLM merges some
matrices and renames layers, and `CHECKPOINT_NAMES` undoes that for each class.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from support.checkpoints import save_model

Fields = dict[str, Any]
Shape = tuple[int, ...]
H, V, LAYERS = 64, 128, 6
INNER, HEADS, KEYS, HEAD_DIM, EXPERTS, RANK = 96, 4, 2, 32, 4, 32
DRAFT_LAYERS = 2
BASE: Fields = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": HEAD_DIM,
    "vocab_size": V,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rope_theta": 10000.0,
    "attention_bias": False,
}
LATENT: Fields = {
    "q_lora_rank": RANK,
    "kv_lora_rank": RANK,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": HEADS,
}
MOE: Fields = {
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
INDEXER: Fields = {"index_topk": 32, "index_n_heads": 4, "index_head_dim": 128}
ONE_HEAD: Fields = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
NEXT_MOE: Fields = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.5,
    "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2,
    "mtp_num_hidden_layers": 1,
}
SPARSE_V4: Fields = {
    "hc_mult": 2,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 2,
    "o_groups": 2,
    "o_lora_rank": 32,
    "sliding_window": 128,
    "compress_ratios": [0, 0, 0],
    "num_hash_layers": 0,
    "swiglu_limit": 7.0,
}
MIMO_V2: Fields = {
    "num_hidden_layers": 2,
    "v_head_dim": 32,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": KEYS,
    "swa_head_dim": 32,
    "swa_v_head_dim": 32,
    "swa_rope_theta": 10000.0,
    "sliding_window": 128,
    "layernorm_epsilon": 1e-6,
    "hybrid_layer_pattern": [0, 1],
    "moe_layer_freq": [0, 0],
    "add_swa_attention_sink_bias": False,
    "add_full_attention_sink_bias": False,
    "attention_value_scale": 1.0,
}
TARGET: Fields = {
    **BASE,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
}
CAPTURED = [1, 3, 5]
BLOCK: Fields = {"mask_token_id": 9, "target_layer_ids": CAPTURED}
CONVOLUTION: Fields = {"conv_kernel_size": 2, "conv_group_size": 8, "block_size": 4}
MASK_TOKEN = 9

Rename = tuple[tuple[str, str], ...]
"""Regular expressions and replacements, applied in order to the names of vLLM's parameters."""
PLAIN: Rename = ((r"^model\.", ""),)
IN_LAYERS: Rename = ((r"\.mtp_block\.", "."),)
MISTRALS: Rename = (
    (r"^model\.fc\.", "eagle_linear."),
    (r"^model\.norm\.", "norm."),
    (r"^model\.layers", "layers"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.q_a_proj", "attention.wq_a"),
    (r"self_attn\.q_b_proj", "attention.wq_b"),
    (r"self_attn\.q_a_layernorm", "attention.q_a_norm"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    (r"self_attn\.kv_b_proj", "attention.wkv_b"),
    (r"self_attn\.kv_a_layernorm", "attention.kv_a_norm"),
    (r"self_attn\.o_proj", "attention.wo"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"mlp\.up_proj", "feed_forward.w3"),
)
IN_V4: Rename = (
    *IN_LAYERS,
    (r"^model\.layers\.2", "mtp.0"),
    (r"^model\.layers\.(\d)", r"mtp.\1"),
    (r"^model\.", "mtp.0."),
    (r"gate_proj", "w1"),
    (r"down_proj", "w2"),
    (r"up_proj", "w3"),
    (r"shared_head\.norm", "norm"),
    (r"gate\.e_score_correction_bias", "gate.bias"),
)
IN_DSPARK: Rename = ((r"^model\.layers\.(\d+)", r"mtp.\1"), *IN_V4)
IN_MTP: Rename = ((r"^model\.(?!embed_tokens)", "mtp."),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDrafter:
    """What is written for one class."""

    drafter: Fields | None = None
    """Config of its folder; None for heads that are part of the target."""
    target: Fields
    rename: Rename
    extra: Mapping[str, Shape] = field(default_factory=dict)
    """Tensors that are no parameters of vLLM's class."""
    merged: tuple[str, ...] = ()
    """Parts of names of parameters that checkpoints hold as vLLM merges them."""
    stored: tuple[str, ...] = ()
    """Parts of names of parameters that this class does not take from the target."""


ALL: dict[str, TinyDrafter] = {}
"""By the name in vLLM's registry."""


def _tiny(fields: Fields) -> dict[str, Any]:
    """Take what is no field of a config."""
    return {name: fields.pop(name) for name in ("extra", "merged", "stored") if name in fields}


def _drafter(
    name: str, *parts: Fields, target: Fields = TARGET, rename: Rename = PLAIN, **fields: Any
) -> None:
    tiny = _tiny(fields)
    drafter = dict(ChainMap(fields, *reversed(parts), {**BASE, "architectures": [name]}))
    ALL[name] = TinyDrafter(drafter=drafter, target=target, rename=rename, **tiny)


def _heads(
    name: str,
    architecture: str,
    kind: str,
    *parts: Fields,
    outside: Fields | None = None,
    text: str = "",
    rename: Rename = IN_LAYERS,
    **fields: Any,
) -> None:
    """Add heads of a target; `outside`: fields beside those of its text model, of type `text`."""
    tiny, top = _tiny(fields), {"architectures": [architecture], "model_type": kind}
    target = {**dict(ChainMap(fields, *reversed(parts), BASE)), **top}
    if outside is not None:
        inner = {key: value for key, value in target.items() if key not in top}
        inner |= {"model_type": text} if text else {}
        target = {**top, **outside, "torch_dtype": "float32", "text_config": inner}
    ALL[name] = TinyDrafter(target=target, rename=rename, **tiny)


LLAMA: Fields = {
    "model_type": "llama",
    "draft_vocab_size": V,
    "eagle_aux_hidden_state_layer_ids": CAPTURED,
}
for _name in (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
):
    _drafter(_name, LLAMA)
_drafter("Eagle3Qwen3ForCausalLM", LLAMA, model_type="qwen3")
for _name in ("PEagleDraftModel", "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM"):
    _layer = "qwen3" if "Qwen3" in _name else "llama"
    _fields = {
        "speculators_model_type": "peagle",
        "architectures": ["PEagleDraftModel"],
        "draft_vocab_size": V,
        "mask_token_id": MASK_TOKEN,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
        "norm_before_residual": False,
        "transformer_layer_config": {**BASE, "model_type": _layer},
        "speculators_config": {
            "algorithm": "peagle",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
        },
    }
    _drafter(_name, _fields, extra={"mask_hidden": (1, 1, 3 * H)})
for _name in ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"):
    _drafter(_name, LLAMA, LATENT, model_type="deepseek_v2")
_drafter("EagleLlamaForCausalLM", model_type="llama", architectures=["LlamaForCausalLM"])
_drafter(
    "EagleCohereForCausalLM",
    model_type="cohere2",
    architectures=["CohereForCausalLM"],
    layer_types=["full_attention"],
    sliding_window=128,
    logit_scale=1.0,
    target={
        **TARGET,
        "model_type": "cohere2",
        "architectures": ["Cohere2ForCausalLM"],
        "layer_types": ["full_attention"] * LAYERS,
        "sliding_window": 128,
        "logit_scale": 1.0,
    },
    rename=(),
)
_drafter(
    "EagleLlama4ForCausalLM",
    model_type="llama4_text",
    architectures=["Llama4ForCausalLM"],
    num_local_experts=2,
    interleave_moe_layer_step=0,
    intermediate_size_mlp=INNER,
    moe_layers=[],
    attention_chunk_size=256,
    no_rope_layers=[1],
    yoco_global_kv_layer=None,
    yoco_local_kv_layer=None,
    draft_vocab_size=V,
)
_drafter(
    "EagleMiniCPMForCausalLM",
    model_type="minicpm",
    architectures=["MiniCPMForCausalLM"],
    scale_emb=1,
    scale_depth=1.0,
    dim_model_base=64,
    rename=(),
)
_drafter(
    "EagleMistralForCausalLM", model_type="mistral", architectures=["MistralForCausalLM"], rename=()
)
for _name in ("EagleMistralLarge3ForCausalLM", "EagleDeepSeekMTPModel"):
    _named = "DeepseekV3ForCausalLM" if "DeepSeek" in _name else "MistralLarge3ForCausalLM"
    _drafter(
        _name,
        LATENT,
        MOE,
        model_type="deepseek_v3",
        architectures=[_named],
        rename=PLAIN if "DeepSeek" in _name else MISTRALS,
    )
_BLOCKS: Fields = {
    "model_type": "qwen3",
    "num_hidden_layers": DRAFT_LAYERS,
    "dflash_config": BLOCK,
    "block_size": 4,
}
_drafter("DFlashDraftModel", _BLOCKS)
_drafter(
    "DFlash2DraftModel",
    _BLOCKS,
    dflash_config={**BLOCK, **CONVOLUTION, "selector_rank": 8, "selector_top_k": 4},
)
_drafter(
    "LiLiCorrDraftModel",
    _BLOCKS,
    dflash_config={
        **BLOCK,
        **CONVOLUTION,
        "lilicorr_hidden_size": 32,
        "lilicorr_candidate_topk": 4,
        "lilicorr_num_heads": 2,
        "lilicorr_mlp_ratio": 2.0,
        "lilicorr_factor_dim": 8,
        "lilicorr_vector_eps": 1e-6,
        "lilicorr_logit_scale": 1.0,
        "lilicorr_num_layers": 1,
    },
)
for _name in ("MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel"):
    _drafter(_name, _BLOCKS)
_drafter(
    "DFlashLagunaForCausalLM",
    _BLOCKS,
    model_type="laguna",
    architectures=["LagunaForCausalLM"],
    draft_vocab_size=V,
    num_experts=EXPERTS,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    mlp_layer_types=["dense"] * DRAFT_LAYERS,
    merged=("qkv_proj",),
)
_SPARK: Fields = {
    "model_type": "qwen3",
    "num_hidden_layers": DRAFT_LAYERS,
    "target_layer_ids": CAPTURED,
    "mask_token_id": MASK_TOKEN,
    "markov_rank": 16,
    "block_size": 4,
}
_drafter("Qwen3DSparkModel", _SPARK)
_drafter("Qwen3OmniDSparkModel", _SPARK)
_drafter(
    "Gemma4DSparkModel",
    _SPARK,
    model_type="gemma4_text",
    layer_types=["full_attention"] * DRAFT_LAYERS,
    attention_k_eq_v=True,
    num_global_key_value_heads=KEYS,
    global_head_dim=HEAD_DIM,
    num_kv_shared_layers=0,
)
_drafter(
    "K3DSparkModel",
    _SPARK,
    LATENT,
    model_type="k3_dspark",
    num_target_layers=len(CAPTURED),
    target_hidden_size=H,
)
_drafter("MedusaModel", model_type="medusa", num_heads=3, num_layers=1, rename=())
_drafter(
    "Gemma4MTPModel",
    model_type="gemma4_assistant",
    architectures=["Gemma4AssistantForCausalLM"],
    backbone_hidden_size=H,
    text_config={
        **BASE,
        "model_type": "gemma4_text",
        "num_hidden_layers": DRAFT_LAYERS,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 128,
        "global_head_dim": HEAD_DIM,
        "num_kv_shared_layers": DRAFT_LAYERS,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    },
    rename=(),
    stored=("embed_tokens",),
)
_DEEPSEEK: Fields = {**LATENT, **MOE, **ONE_HEAD}
_heads("DeepSeekMTPModel", "DeepseekV3ForCausalLM", "deepseek_v3", _DEEPSEEK)
_heads("DeepseekV32MTPModel", "DeepseekV32ForCausalLM", "deepseek_v32", _DEEPSEEK, INDEXER)
_heads(
    "DeepSeekV4MTPModel",
    "DeepseekV4ForCausalLM",
    "deepseek_v4",
    _DEEPSEEK,
    INDEXER,
    SPARSE_V4,
    rename=IN_V4,
)
_SPARK_IN_TARGET: Fields = {
    **_DEEPSEEK,
    **INDEXER,
    **SPARSE_V4,
    "dspark_target_layer_ids": [0, 1],
    "dspark_markov_rank": 16,
    "dspark_block_size": 4,
    "dspark_noise_token_id": MASK_TOKEN,
}
for _name, _kind in (("DSparkDraftModel", "V4"), ("DSparkV41DraftModel", "V41")):
    _heads(
        _name,
        f"Deepseek{_kind}ForCausalLM",
        f"deepseek_{_kind.lower()}",
        _SPARK_IN_TARGET,
        rename=IN_DSPARK,
    )
_heads(
    "Dots3NoteMTPModel",
    "Dots3NoteForCausalLM",
    "dots3_note",
    LATENT,
    MOE,
    ONE_HEAD,
    layer_types=["full_attention", "sliding_attention"],
    swa_num_attention_heads=HEADS,
    swa_qk_nope_head_dim=32,
    swa_qk_rope_head_dim=32,
    swa_v_head_dim=32,
    swa_q_lora_rank=RANK,
    swa_kv_lora_rank=RANK,
    swa_rope_theta=10000.0,
    apply_mla_qkv_lora_rescale=False,
    swa_attention_gate_type="headwise",
    attention_gate_type="headwise",
    sliding_window=128,
    sliding_window_size=128,
)
for _version, _named in (("V3", "BailingMoeV3ForCausalLM"), ("V25", "BailingMoeV2_5ForCausalLM")):
    _heads(
        f"BailingMoe{_version}MTPModel",
        _named,
        "bailing_hybrid",
        _DEEPSEEK,
        num_experts=EXPERTS,
        num_shared_experts=1,
        layer_group_size=2,
        moe_shared_expert_intermediate_size=32,
        use_bias=False,
        use_qkv_bias=False,
        use_qk_norm=True,
    )
_heads(
    "MiniMaxM3MTP",
    "MiniMaxM3SparseForConditionalGeneration",
    "minimax_m3_vl",
    num_hidden_layers=2,
    num_mtp_modules=1,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    hidden_act="swigluoai",
    swiglu_alpha=1.7,
    swiglu_limit=7.0,
    swiglu_beta=1.0,
    dense_intermediate_size=INNER,
    moe_layer_freq=[0, 1, 1],
    sparse_attention_config={
        "use_sparse_attention": True,
        "sparse_index_dim": HEAD_DIM,
        "sparse_num_index_heads": KEYS,
        "sparse_topk_blocks": 16,
        "sparse_block_size": 128,
        "sparse_disable_index_value": [0, 1, 1],
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_attention_freq": [0, 1, 1],
    },
    outside={"vocab_size": V},
    rename=(
        (r"^model\.layers", "language_model.model.mtp.layers"),
        (r"(experts\.\d+\.)gate_proj", r"\1w1"),
        (r"(experts\.\d+\.)down_proj", r"\1w2"),
        (r"(experts\.\d+\.)up_proj", r"\1w3"),
    ),
)
_heads(
    "InklingMTPModel",
    "InklingForConditionalGeneration",
    "inkling_mm_model",
    MOE,
    num_hidden_layers=2,
    outside={"mtp_config": {"num_nextn_predict_layers": 1}},
    rename=(
        (r"^model\.layers", "model.mtp.layers"),
        (r"^model\.backbone_embed_norm", "model.llm.embed_norm"),
        (r"mlp\.gate_up_proj", "mlp.w13_dn"),
        (r"mlp\.down_proj", "mlp.w2_md"),
    ),
    merged=("gate_up_proj",),
)
_heads(
    "ErnieMTPModel",
    "Ernie4_5_MoeForCausalLM",
    "ernie4_5_moe",
    ONE_HEAD,
    moe_num_experts=EXPERTS,
    moe_k=2,
    moe_intermediate_size=32,
    rename=(
        (r"^model\.layers\.2\.mtp_block\.", "model.mtp_block.0."),
        (r"^model\.layers\.2\.(mtp_\w+)\.", r"model.\1.0."),
    ),
)
_EXAONE: Fields = {**ONE_HEAD, "layer_types": ["full_attention"] * 2, "sliding_window": 128}
_heads(
    "ExaoneMoeMTP",
    "ExaoneMoEForCausalLM",
    "exaone_moe",
    _EXAONE,
    num_experts=EXPERTS,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    num_shared_experts=1,
    is_moe_layer=[False, True],
    first_k_dense_replace=1,
    rename=IN_MTP,
)
_heads(
    "Exaone4_5_MTP",
    "Exaone4_5_ForConditionalGeneration",
    "exaone4_5",
    _EXAONE,
    text="exaone4",
    outside={"vocab_size": V, "num_nextn_predict_layers": 1},
    rename=IN_MTP,
)
_heads(
    "NemotronHMTPModel",
    "NemotronHForCausalLM",
    "nemotron_h",
    ONE_HEAD,
    hybrid_override_pattern="*-",
    mtp_hybrid_override_pattern="*E",
    n_routed_experts=EXPERTS,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    moe_shared_expert_intermediate_size=32,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    mlp_hidden_act="relu2",
    rename=IN_MTP,
)
_heads(
    "LongCatFlashMTPModel",
    "LongcatFlashForCausalLM",
    "longcat_flash",
    LATENT,
    num_layers=2,
    num_hidden_layers=2,
    ffn_hidden_size=INNER,
    expert_ffn_hidden_size=32,
    n_routed_experts=EXPERTS,
    moe_topk=2,
    zero_expert_num=0,
    num_nextn_predict_layers=1,
    routed_scaling_factor=1.0,
    mla_scale_q_lora=True,
    mla_scale_kv_lora=True,
    rename=(
        (r"^model\.layers\.2\.final_layernorm", "model.mtp.norm"),
        (r"^model\.layers\.2\.([eh])norm\.", r"model.mtp.layers.0.\1norm.m."),
        (r"^model\.layers\.2\.eh_proj", "model.mtp.layers.0.eh_proj"),
        (r"^model\.layers\.2\.mtp_block\.mlp", "model.mtp.layers.0.transformer_layer.mlp"),
        (r"^model\.layers\.2\.mtp_block\.", "model.mtp.layers.0."),
    ),
)
_GLM: Fields = {**MOE, **ONE_HEAD}
_heads("Glm4MoeMTPModel", "Glm4MoeForCausalLM", "glm4_moe", _GLM, use_qk_norm=True)
_heads("Glm4MoeLiteMTPModel", "Glm4MoeLiteForCausalLM", "glm4_moe_lite", _GLM, LATENT)
_heads(
    "GlmOcrMTPModel",
    "GlmOcrForConditionalGeneration",
    "glm_ocr",
    ONE_HEAD,
    text="glm_ocr_text",
    outside={"num_nextn_predict_layers": 1},
    rename=(*IN_LAYERS, (r"^model\.layers", "model.language_model.layers")),
)
_heads(
    "Glm5NextMTPModel",
    "Glm5NextForConditionalGeneration",
    "glm5_next",
    _GLM,
    LATENT,
    INDEXER,
    qk_rope_head_dim=0,
    mla_use_nope=True,
    indexer_rope_interleave=False,
    mhc=False,
    text="glm5_next_text",
    outside={},
)
_heads("OpenPanguMTPModel", "PanguUltraMoEForCausalLM", "pangu_ultra_moe", _DEEPSEEK)
_heads(
    "Qwen3NextMTP",
    "Qwen3NextForCausalLM",
    "qwen3_next",
    NEXT_MOE,
    num_nextn_predict_layers=1,
    rename=IN_MTP,
)
_heads(
    "Qwen4ExpMTP",
    "Qwen4ExpForConditionalGeneration",
    "qwen4_exp",
    NEXT_MOE,
    hc_count=2,
    outside={},
    rename=IN_MTP,
)
_heads(
    "Step3p5MTP",
    "Step3p5ForCausalLM",
    "step3p5",
    ONE_HEAD,
    num_attention_groups=KEYS,
    moe_layers_enum="1",
    stored=("embed_tokens", "shared_head.head"),
)
for _name, _kind in (("Qwen3_5", "qwen3_5"), ("Qwen3_5Moe", "qwen3_5_moe")):
    _heads(
        f"{_name}MTP",
        f"{_name}ForConditionalGeneration",
        _kind,
        NEXT_MOE,
        text=f"{_kind}_text",
        outside={},
        rename=IN_MTP,
    )
_heads(
    "InternS2MobiusMTP",
    "InternS2MobiusForConditionalGeneration",
    "interns2_mobius",
    NEXT_MOE,
    mtp_num_experts=EXPERTS,
    mtp_num_experts_per_tok=2,
    text="qwen3_5_moe_text",
    outside={},
    rename=IN_MTP,
)
_heads(
    "HYV3MTPModel",
    "HYV3ForCausalLM",
    "hy_v3",
    _GLM,
    num_experts=EXPERTS,
    moe_topk=2,
    num_shared_experts=1,
    expert_hidden_dim=32,
    moe_router_enable_expert_bias=True,
    router_scaling_factor=1.0,
    route_norm=True,
    qk_norm=True,
)
_heads(
    "HYV4MTPModel", "HYV4ForCausalLM", "hy_v4", _DEEPSEEK, INDEXER, num_experts=EXPERTS, moe_topk=2
)
_heads(
    "KimiK3MTPModel",
    "KimiK3ForConditionalGeneration",
    "kimi_k3",
    _DEEPSEEK,
    linear_attn_config={
        "kda_layers": [1],
        "full_attn_layers": [2],
        "num_heads": 2,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
    },
    mla_use_nope=True,
    text="kimi_linear",
    outside={},
)
_heads(
    "MiMoMTPModel",
    "MiMoForCausalLM",
    "mimo",
    ONE_HEAD,
    attention_bias=True,
    rename=(*IN_LAYERS, (r"mtp_layers\.\d+", "mtp_layers.0")),
)
_heads("MiMoV2MTPModel", "MiMoV2FlashForCausalLM", "mimo_v2", MIMO_V2)
_heads("MiMoV2OmniMTPModel", "MiMoV2OmniForCausalLM", "mimo_v2_omni", MIMO_V2)

_NOT_STORED = (
    "embed_tokens",
    "lm_head",
    "shared_head.head",
    "mask_embedding",
    "draft_id_to_target",
    "context_wkv",
)
"""Parts of names of parameters that vLLM takes from the target, or from other parameters."""


def checkpoint_tensors(
    tiny: TinyDrafter, parameters: Mapping[str, Sequence[int]]
) -> dict[str, Shape]:
    """Return the tensors of a checkpoint: vLLM's parameters, taken apart and renamed."""
    tensors = dict(tiny.extra)
    for name, shape in parameters.items():
        if any(part in name for part in _NOT_STORED if part not in tiny.stored):
            continue
        whole = any(part in name for part in tiny.merged)
        parts = [(name, tuple(shape))] if whole else _taken_apart(name, tuple(shape))
        for part, size in parts:
            stored = part
            for pattern, replacement in tiny.rename:
                stored = re.sub(pattern, replacement, stored)
            tensors[stored] = size
    return tensors


def _taken_apart(name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield the matrices that vLLM merges into a parameter."""
    if name.endswith(("w13_weight", "w2_weight")):
        yield from _experts(name, shape)
        return
    rows, rest = shape[0], shape[1:]
    if ".attn_sink" in name:  # vLLM pads it
        rows = HEADS
    merged = name.split(".")[-2] if "." in name else name
    queries, keys = HEADS * HEAD_DIM, KEYS * HEAD_DIM
    indexed = rows == (HEADS + 3 * KEYS + 1) * HEAD_DIM
    narrow = keys if rows > 2 * H else KEYS * H // HEADS
    own = {"q_proj": rows - 2 * narrow, "k_proj": narrow, "v_proj": narrow}
    with_index = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    with_index |= {"index_q_proj": keys, "index_k_proj": HEAD_DIM}
    weights = INDEXER["index_n_heads"]
    parts = {
        "qkv_proj": with_index if indexed else own,
        "gate_up_proj": {"gate_proj": rows // 2, "up_proj": rows // 2},
        "fused_qkv_a_proj": {"q_a_proj": RANK, "kv_a_proj_with_mqa": rows - RANK},
        "fused_wqa_wkv": {"wq_a": RANK, "wkv": rows - RANK},
        "qkvr": {
            "wq_du": queries,
            "wk_dv": keys,
            "wv_dv": keys,
            "wr_du": rows - queries - 2 * keys,
        },
        "wk_weights_proj": {"wk": rows - weights, "weights_proj": weights},
    }
    for part, size in parts.get(merged, {merged: rows}).items():
        yield name.replace(merged, part), (size, *rest)


def _experts(name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    number, rows, columns = shape
    layer = name.rpartition(".routed_experts.")[0]
    for expert in range(number):
        if name.endswith("w2_weight"):
            yield f"{layer}.{expert}.down_proj.weight", (rows, columns)
        elif "mixer" in name:  # without a gate
            yield f"{layer}.{expert}.up_proj.weight", (rows, columns)
        else:
            for part in ("gate", "up"):
                yield f"{layer}.{expert}.{part}_proj.weight", (rows // 2, columns)


def write(folder: Path, name: str, tensors: Mapping[str, Shape]) -> tuple[Path, Path]:
    """Write a class's tiny checkpoint, and return the folders of drafter and target."""
    tiny, random = ALL[name], torch.Generator().manual_seed(0)
    state = {
        stored: torch.rand(shape, generator=random) + (0.5 if len(shape) < 2 else -0.5)
        for stored, shape in tensors.items()
    }
    if tiny.drafter is None:
        target = save_model(folder / "target", tiny.target, state)
        return target, target
    target = save_model(folder / "target", tiny.target, {})
    return save_model(folder / "drafter", tiny.drafter, state), target
