"""Fields of a drafter's config that an engine reads for its layers: which the reference runs with,
which it cannot, which must be the target's, and which nobody knows.

A field that is not in these tables is looked for in the source of the vLLM that is installed. The
tables are those of vLLM 0.32 and of SGLang 0.5.23; `tests/unit/inspect/test_checks.py`
compares them with what is installed.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from driftscope.boundary.text import dumps
from driftscope.inspect.checkpoints import DrafterFiles
from driftscope.inspect.checks.result import (
    VLLM,
    Certainty,
    CheckLevel,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)
from driftscope.inspect.drafter_classes import MASK_TOKENS, MIMO, Family
from driftscope.inspect.reference.config import ROTARY_SHARE, rotary_share

SOURCES: Mapping[Family, tuple[str, ...]] = {
    Family.LLAMA: ("llama_eagle3.py", "llama.py"),
    Family.QWEN3: ("qwen3_eagle3.py", "qwen3.py"),
    Family.EAGLE1: ("llama_eagle.py", "llama.py"),
    Family.MLA: ("deepseek_eagle3.py", "deepseek_v2.py:DeepseekV2MLAAttention"),
    Family.MTP: ("mimo_mtp.py", "qwen2.py:Qwen2DecoderLayer"),
}
"""Modules of vLLM's models, or single classes of them, that read the config of a drafter, by the
family of its layers. Of heads for multi-token prediction only MiMo's are run."""
RUN_WITH = frozenset(
    (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
        *("num_attention_heads", "num_key_value_heads", "head_dim"),
        *("rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling", "rotary_emb_base"),
        *ROTARY_SHARE,
        *("max_position_embeddings", "original_max_position_embeddings"),
        *("attention_bias", "mlp_bias"),
        *("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual"),
        *("draft_vocab_size", "target_hidden_size", "num_aux_hidden_states", "num_aux_layers"),
        *("eagle_config", "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"),
        *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        "num_nextn_predict_layers",
    )
)
"""Fields with which the reference drafter runs as vLLM does."""
WITHOUT_EFFECT = frozenset(
    (
        *("target_layer_count", "tie_word_embeddings", "sliding_window", "max_window_layers"),
        *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range"),
        *("pretraining_tp", "attention_dropout", "use_sliding_window", "quantization_config"),
        *("auto_map", "id2label", "label2id", "problem_type", "return_dict", "is_encoder_decoder"),
        *("output_attentions", "output_hidden_states", "chunk_size_feed_forward", "name_or_path"),
        *("_name_or_path", "_attn_implementation", "get_text_config", "qk_norm"),
        *("index_n_heads", "index_head_dim", "index_topk_freq", "index_topk_pattern"),
        *("index_skip_topk_offset", "indexer_rope_interleave", "text_config"),
    )
)
"""Fields that change nothing in vLLM's drafter: vLLM sets them itself, reads them for targets only,
or does not read them at all. Its drafter has its own head whether or not embeddings are tied, and
a window only where `layer_types` says so, and an index of tokens only with `index_topk`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neutral:
    """Values of a field for which the reference does what vLLM does."""

    values: tuple[Any, ...]
    otherwise: str
    """Words for what vLLM does with another value."""
    refused: bool = False
    """Whether vLLM does not start then."""


NEUTRAL: Mapping[str, Neutral] = {
    "hidden_act": Neutral(
        values=("silu", "swish"), otherwise="knows no other activation than silu", refused=True
    ),
    "is_causal": Neutral(values=(True,), otherwise="lets a token attend to later ones"),
    "logit_scale": Neutral(values=(1, 1.0), otherwise="multiplies the logits"),
    "bias": Neutral(values=(False,), otherwise="gives attention's projections biases"),
    "qkv_bias": Neutral(values=(False,), otherwise="gives attention's projections biases"),
    "layer_types": Neutral(values=(), otherwise="gives a layer a sliding window"),
    "dual_chunk_attention_config": Neutral(values=(), otherwise="attends in chunks"),
    "index_topk": Neutral(values=(), otherwise="attends to chosen tokens only"),
}
"""Fields with which the reference runs only as long as they have these values."""
SGLANG_ALONE = {
    "tie_word_embeddings": (True, "takes the embedding as the drafter's head"),
    "use_aux_norm": (True, "applies a norm before fc"),
    "rope_is_neox_style": (False, "rotates neighbours"),
}
"""Fields that SGLang reads and vLLM does not, with the value that has the effect."""
OWN_PARTS = ("dflash_config", "eagle_config")
"""Objects in a config with the fields of the drafter alone."""
TARGET_LAYERS = "num_target_layers"
OF_BLOCKS = frozenset(
    (
        *("mask_token_id", "dspark_noise_token_id", TARGET_LAYERS),
        *("target_layer_ids", "aux_hidden_state_layer_ids", "dspark_target_layer_ids"),
        *("block_size", "dspark_block_size", "sample_from_anchor", "dspark_bonus_anchor"),
        *("causal", "use_swa", "swa_window_size", "is_neox_style", "attention_value_scale"),
        *("attention_sink_bias", "add_swa_attention_sink_bias"),
        *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
        *("markov_rank", "enable_confidence_head", "confidence_head_with_markov"),
        *("dspark_draft_topk", "has_own_lm_head", "input_embedding_scale"),
        *("final_logit_softcapping", "output_multiplier"),
    )
)
"""Fields of DFlash and DSpark that vLLM reads: the mask token, captured layers and the target's
layers, which are compared; sizes, which the engine compares with the tensors; how long a block is,
how its layers attend and how its logits are scaled, which only their trainer knows."""
_FULL = "full_attention"
LARGEST_EPS = 1e-3
"""Largest usual `rms_norm_eps`: published models have 1e-8 to 1e-5, and one of 1e-2 costs the
shipped drafter 8 % of its acceptance length, one of 1 costs 60 %."""


def not_promised(drafter: DrafterFiles) -> tuple[str, ...]:
    """Return the reasons why what the reference drafter accepts is not what vLLM would: fields with
    which vLLM does something else."""
    reasons = []
    for name, neutral in NEUTRAL.items():
        value = drafter.fields.get(name)
        kinds = value if name == "layer_types" and isinstance(value, list) else None
        full = kinds is not None and all(kind == _FULL for kind in kinds)
        if value is None or value in neutral.values or full:
            continue
        reasons.append(f'"{name}": {dumps(value)}: {VLLM} {neutral.otherwise}')
    read = fields_read(vllm_models(), modules_of(drafter))
    known = RUN_WITH | WITHOUT_EFFECT | NEUTRAL.keys()
    unknown = sorted((set(drafter.fields) & read) - known)
    words = "the installed vLLM reads it, and inspect does not know what for"
    return (*reasons, *(f"{name}: {words}" for name in unknown))


def check_layer_fields(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield fields that vLLM refuses, that the reference does not run with, or that are unknown."""
    drafter = inspected.drafter
    modules = modules_of(drafter)
    if not modules:
        return
    is_run = drafter.format.family in SOURCES
    act = drafter.fields.get("hidden_act")
    reads_act = is_run or "hidden_act" in fields_read(vllm_models(), modules)
    if reads_act and act is not None and act not in NEUTRAL["hidden_act"].values:
        yield error(
            id="activation_refused",
            title="vLLM and SGLang refuse the activation",
            expected='"hidden_act": "silu"',
            rule=f"{VLLM}, the MLP of {modules[0]}; SGLang 0.5.23, llama.py LlamaMLP",
            found=f'"hidden_act": {dumps(act)}',
            change='"hidden_act": "silu", if it was trained so',
        )
    unlike = [reason for reason in not_promised(drafter) if not reason.startswith('"hidden_act"')]
    if unlike and is_run:
        yield warning(
            id="fields_not_run",
            title="vLLM reads fields with which inspect cannot run the drafter",
            expected="usual values, or a measurement in the engine",
            rule=f"{VLLM}, {' and '.join(modules)}",
            found="; ".join(unlike),
            change="serve it, and compare the run: driftscope serve, then driftscope compare",
            certainty=Certainty.POSSIBLE,
        )
    for name, (value, effect) in SGLANG_ALONE.items():
        if drafter.fields.get(name) is value and value is not None:
            yield note(
                id="field_of_sglang",
                title=f"SGLang {effect}, vLLM does not",
                expected=f'"{name}": {dumps(not value)} for SGLang',
                rule="SGLang 0.5.23, llama_eagle3.py",
                found=f'"{name}": {dumps(value)}',
            )
    yield from _unknown_to_all(drafter)


def modules_of(drafter: DrafterFiles) -> tuple[str, ...]:
    """Return the modules of vLLM's models that read the config; () if it is not known which."""
    row, family = drafter.format.row, drafter.format.family
    if family is Family.MTP and drafter.format.architecture != MIMO:
        return ()
    if family in (Family.BLOCKS, Family.HEADS) and row is not None:
        return tuple(row.source.split(", "))
    return SOURCES.get(family, ()) if family else ()


_OF_MEDUSA = re.compile("num.*(heads|layers)|(heads|layers).*num")
"""Names that vLLM's MedusaConfig takes for num_heads and num_hidden_layers."""


def _unknown_to_all(drafter: DrafterFiles) -> Iterator[CheckResult]:
    read = fields_read(vllm_models(), modules_of(drafter))
    if drafter.format.family is Family.MTP or not (drafter.format.family in SOURCES or read):
        return  # a target's config has fields of its own; without vLLM these classes are unknown
    known = RUN_WITH | WITHOUT_EFFECT | NEUTRAL.keys() | SGLANG_ALONE.keys() | set(OWN_PARTS)
    if drafter.format.family is Family.BLOCKS:
        read = OF_BLOCKS
    elif drafter.format.parallel:
        read = read.union(MASK_TOKENS, ("parallel_drafting",))
    names = sorted(set(drafter.fields) - known - read)
    if drafter.format.architecture == "MedusaModel":
        names = [name for name in names if not _OF_MEDUSA.search(name)]
    for part in OWN_PARTS:
        names += [
            f"{part}.{name}" for name in drafter.fields.get(part, {}) if name not in known | read
        ]
    if names and not drafter.format.speculators:
        yield note(
            id="fields_not_known",
            title="config.json has fields that are not known to be read",
            expected="nothing to do, if the trainer wrote them for itself",
            rule=f"{VLLM}, {' and '.join(modules_of(drafter))}",
            found=", ".join(names),
        )


def check_fields_of_target(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield fields of the layer that trainers copy from the target, and that differ."""
    drafter, target = inspected.drafter, inspected.target
    if target is None:
        return
    yield from _eps(drafter, target.fields)
    layers, count = drafter.fields.get(TARGET_LAYERS), target.layers
    if layers is not None and count and layers != count:
        yield warning(
            id="target_layers_differ",
            title="the drafter was made for a target with another number of layers",
            expected=f'"{TARGET_LAYERS}": {count}',
            rule="trainers write the number of layers of the target that they trained beside",
            found=f"{dumps(layers)}",
            change="use a drafter of this target",
            certainty=Certainty.LIKELY,
        )
    own, theirs = rotary_share(drafter.fields), rotary_share(target.fields)
    if own != theirs:
        yield warning(
            id="partial_rotary_differs",
            title="the share of a head that is rotated is not the target's",
            expected=f'"partial_rotary_factor": {theirs:g}',
            rule="positions must turn as they did in training; trainers copy the target's",
            found=f"{own:g}",
            change=f'"partial_rotary_factor": {theirs:g}, if it was trained so',
            certainty=Certainty.POSSIBLE,
        )
    ours, targets = heads_of(drafter.fields), heads_of(target.fields)
    latent = drafter.format.family is Family.MLA
    if not latent and ours and targets and ours != targets and _same_shapes(ours, targets):
        words = [f"{q} heads of {size}, {kv} of keys" for q, kv, size in (ours, targets)]
        yield warning(
            id="heads_differ",
            title="the heads are cut otherwise than the target's, at the same shapes",
            expected=words[1],
            rule="the shapes of q_proj to o_proj fit both, so that an engine cannot tell; trainers "
            "copy the target's",
            found=words[0],
            change="num_attention_heads, num_key_value_heads and head_dim of the target, if it was "
            "trained so",
            certainty=Certainty.POSSIBLE,
        )


Heads = tuple[int, int, int]
"""Number of query heads, of key heads, and the size of a head."""


def heads_of(fields: Mapping[str, Any]) -> Heads | None:
    """Return the heads of a config; None if it does not say."""
    queries, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
    if not isinstance(queries, int) or not isinstance(hidden, int) or queries < 1:
        return None
    keys = fields.get("num_key_value_heads") or queries
    size = fields.get("head_dim") or hidden // queries
    # Models of layers that differ have a list in place of a number.
    return (queries, keys, size) if isinstance(keys, int) and isinstance(size, int) else None


def _same_shapes(one: Heads, other: Heads) -> bool:
    return all(a * one[2] == b * other[2] for a, b in zip(one[:2], other[:2], strict=True))


def _eps(drafter: DrafterFiles, targets: Mapping[str, Any]) -> Iterator[CheckResult]:
    own, theirs = (place.get("rms_norm_eps", 1e-6) for place in (drafter.fields, targets))
    if own == theirs or not all(isinstance(eps, int | float) for eps in (own, theirs)):
        return
    large = own > LARGEST_EPS and own > theirs
    yield CheckResult(
        id="eps_differs",
        level=CheckLevel.WARNING if large else CheckLevel.NOTE,
        title="rms_norm_eps is not the target's" + (", and larger than any published" * large),
        expected=f'"rms_norm_eps": {theirs:g}',
        rule=f"trainers copy the target's; up to {LARGEST_EPS:g} it hardly changes a norm",
        found=f'"rms_norm_eps": {own:g}',
        change=f'"rms_norm_eps": {theirs:g}, if it was trained so' if large else None,
        certainty=Certainty.LIKELY if large else Certainty.POSSIBLE,
    )


def vllm_models() -> Path | None:
    """Return the folder of vLLM's models, without importing them; None if it is not installed."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "model_executor" / "models"


@cache
def fields_read(folder: Path | None, modules: tuple[str, ...]) -> frozenset[str]:
    """Return the fields that the source of some modules, or of classes in them, reads from a
    config."""
    names = set[str]()
    if folder is None:
        return frozenset()
    for name in modules:
        module, _, wanted = name.partition(":")
        try:
            tree: ast.AST = ast.parse((folder / module).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        classes = [node for node in ast.walk(tree) if getattr(node, "name", None) == wanted]
        for root in classes if wanted else [tree]:
            names |= {field for node in ast.walk(root) for field in _read_by(node)}
    return frozenset(names)


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and _is_config(node.value):
        yield from {node.attr} - {"get", "update"}
    elif isinstance(node, ast.Subscript) and _is_config(node.value):
        yield from _constants(node.slice)
    elif isinstance(node, ast.Call) and node.args:
        of_it = isinstance(node.func, ast.Attribute) and _is_config(node.func.value)
        if of_it or _is_config(node.args[0]):  # config.get("name"), getattr(config, "name")
            yield from _constants(*node.args)


def _constants(*nodes: ast.AST) -> Iterator[str]:
    return (
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_config(node: ast.AST) -> bool:
    """Whether an expression is the config of a model, or the part of it that a drafter has."""
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    whole = ("config", "hf_config", "text_config", "hf_text_config")
    return name in (*whole, *OWN_PARTS, "draft_config", "drafter_config")
