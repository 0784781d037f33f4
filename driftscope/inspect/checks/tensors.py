"""Checks the names and shapes of a drafter's tensors, and the MTP heads of a target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from driftscope.inspect.checkpoints import (
    MASK_STATE,
    DrafterFiles,
    find_heads,
    foreign_prefix,
    heads_wanted,
)
from driftscope.inspect.checks.result import (
    VLLM,
    VLLM_EAGLE1_LOADER,
    VLLM_EAGLE1_MODEL,
    VLLM_LOADER,
    VLLM_MODEL,
    Certainty,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)
from driftscope.inspect.drafter_classes import Family

Shape = tuple[int, ...]
ATTENTION = "self_attn."
FC_BIAS = "fc.bias"
HEAD, EMBEDDING, D2T, T2D = "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"


def required(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the tensors without which a drafter cannot work, by their common name."""
    hidden, inputs = drafter.hidden_size, fc_inputs(drafter)
    shapes: dict[str, Shape] = {"fc.weight": (hidden, inputs)} if inputs else {}
    if drafter.format.family is not Family.EAGLE1:
        shapes |= {"norm.weight": (hidden,), "layers.0.hidden_norm.weight": (hidden,)}
    for layer in range(drafter.layers):
        shapes |= {f"layers.{layer}.{name}": one for name, one in _layer(drafter, layer).items()}
        shapes |= {f"layers.{layer}.{name}": one for name, one in _biases(drafter).items()}
    return shapes


def optional(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the tensors that an engine can do without, or that other checks judge."""
    width, states = drafter.target_hidden_size, drafter.named_states
    shapes: dict[str, Shape] = {EMBEDDING: (drafter.vocab_size, drafter.hidden_size)}
    if drafter.format.family is Family.EAGLE1:  # its head is the target's
        if drafter.for_sglang:  # it has a place for these, or passes over them; vLLM refuses them
            hidden = drafter.hidden_size
            shapes |= {FC_BIAS: (hidden,), HEAD: (drafter.vocab_size, hidden)}
        return shapes
    shapes |= {
        HEAD: (drafter.draft_vocab_size, drafter.hidden_size),
        D2T: (drafter.draft_vocab_size,),
        T2D: (drafter.vocab_size,),
        "input_norm.weight": (states * width,),
        **{f"fc_norm.{state}.weight": (width,) for state in range(states)},
    }
    return shapes


def fc_inputs(drafter: DrafterFiles) -> int:
    """Return the width that `fc` reads: captured states times their width, or the embedding and one
    state of an EAGLE-1 drafter."""
    if drafter.format.family is Family.EAGLE1:
        return 2 * drafter.hidden_size
    return drafter.aux_states * drafter.target_hidden_size


def _layer(drafter: DrafterFiles, layer: int) -> dict[str, Shape]:
    hidden, inner = drafter.hidden_size, drafter.size("intermediate_size")
    first = layer == 0
    is_eagle1 = drafter.format.family is Family.EAGLE1
    reads = 2 * hidden if first and not is_eagle1 else hidden
    latent = drafter.format.family is Family.MLA
    attention = _latent_attention(drafter, reads) if latent else _attention(drafter, reads)
    normed: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    return {
        **({} if first and is_eagle1 else normed),
        **{ATTENTION + name: shape for name, shape in attention.items()},
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }


def _attention(drafter: DrafterFiles, reads: int) -> dict[str, Shape]:
    queries, keys, size = _heads(drafter)
    normed = drafter.format.family is Family.QWEN3
    return {
        "q_proj.weight": (queries * size, reads),
        "k_proj.weight": (keys * size, reads),
        "v_proj.weight": (keys * size, reads),
        "o_proj.weight": (drafter.hidden_size, queries * size),
        **({"q_norm.weight": (size,), "k_norm.weight": (size,)} if normed else {}),
    }


def _biases(drafter: DrafterFiles) -> dict[str, Shape]:
    """Return the biases that the config asks for. An engine that finds none keeps what lay in
    memory."""
    hidden, shapes = drafter.hidden_size, dict[str, Shape]()
    if drafter.format.family is Family.MLA:
        return shapes
    others = drafter.format.family is not Family.QWEN3  # it has none but attention's inputs
    if drafter.fields.get("attention_bias"):
        queries, keys, size = _heads(drafter)
        shapes |= {
            f"{ATTENTION}q_proj.bias": (queries * size,),
            f"{ATTENTION}k_proj.bias": (keys * size,),
            f"{ATTENTION}v_proj.bias": (keys * size,),
        }
        if others:
            shapes[f"{ATTENTION}o_proj.bias"] = (hidden,)
    if drafter.fields.get("mlp_bias") and others:
        inner = drafter.size("intermediate_size")
        shapes |= {
            "mlp.gate_proj.bias": (inner,),
            "mlp.up_proj.bias": (inner,),
            "mlp.down_proj.bias": (hidden,),
        }
    return shapes


def _heads(drafter: DrafterFiles) -> tuple[int, int, int]:
    """Return the number of query heads, of key heads, and the size of a head."""
    queries = drafter.size("num_attention_heads")
    keys = drafter.size("num_key_value_heads", queries)
    return queries, keys, drafter.size("head_dim", max(1, drafter.hidden_size // queries))


def _latent_attention(drafter: DrafterFiles, reads: int) -> dict[str, Shape]:
    heads, rank = drafter.size("num_attention_heads"), drafter.size("kv_lora_rank")
    plain, turned = drafter.size("qk_nope_head_dim"), drafter.size("qk_rope_head_dim")
    values = drafter.size("v_head_dim")
    shapes: dict[str, Shape] = {
        "kv_a_proj_with_mqa.weight": (rank + turned, reads),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (plain + values), rank),
        "o_proj.weight": (drafter.hidden_size, heads * values),
    }
    low = drafter.fields.get("q_lora_rank")
    if not isinstance(low, int):
        return {**shapes, "q_proj.weight": (heads * (plain + turned), reads)}
    return {
        **shapes,
        "q_a_proj.weight": (low, reads),
        "q_a_layernorm.weight": (low,),
        "q_b_proj.weight": (heads * (plain + turned), low),
    }


_FEW = 3
"""Number of tensors that a result names one by one."""
_JUDGED_ELSEWHERE = ("fc_norm.", "input_norm.", D2T)
_FC = "fc.weight"
_IGNORED = (MASK_STATE, "rotary_emb.inv_freq")
"""Parts of names that engines skip."""


def check_shapes(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield missing, unexpected and misshapen tensors. Those of a quantised drafter have other
    names and shapes: only a module without any tensor is missing."""
    drafter = inspected.drafter
    needed, stored = required(drafter), drafter.tensors
    known = needed | optional(drafter)
    packed = {name.rpartition(".")[0] for name in stored if drafter.quantized}
    missing = [
        name for name in needed if name not in stored and name.rpartition(".")[0] not in packed
    ]
    own_width = drafter.hidden_size != drafter.target_hidden_size
    if own_width and drafter.reads_captured and EMBEDDING not in stored:
        missing.append(EMBEDDING)
    if drafter.draft_vocab_size != drafter.vocab_size and HEAD not in stored:
        missing.append(HEAD)
    mask = stored.get(MASK_STATE)
    if drafter.format.parallel and mask is None:
        missing.append(MASK_STATE)
    if missing:
        yield error(
            id="missing_tensor",
            title="tensors are missing",
            expected=f"{len(missing)} more tensors; without them layers keep random weights",
            rule=_model(drafter),
            found=f"no {some(missing)}",
            change="save the checkpoint again, whole",
        )
    if drafter.quantized:
        return
    is_eagle1 = drafter.format.family is Family.EAGLE1
    extra = [
        name
        for name, tensor in stored.items()
        # Only engines' models of EAGLE-3 know a name with midlayer.
        if (name not in known or (is_eagle1 and "midlayer." in tensor.name))
        and not name.startswith(_JUDGED_ELSEWHERE)
        and not any(part in name for part in _IGNORED)
    ]
    if extra:
        yield error(
            id="unexpected_tensor",
            title="tensors have no place in the model",
            expected="only tensors of the architecture that config.json names",
            rule=f"{_loader(drafter)}: raises for a name that it does not know",
            found=some(extra),
            change="correct architectures or num_hidden_layers in config.json, or drop the tensors",
        )
    if _FC in needed:
        yield from _fc_width(drafter)
    wrong = [
        f"{name} {_shape_words(stored[name].shape)}, not {_shape_words(shape)}"
        for name, shape in known.items()
        if name in stored and name != _FC and stored[name].shape != shape
    ]
    if mask is not None and mask.elements != fc_inputs(drafter):
        wrong.append(f"{MASK_STATE} {mask.elements} numbers, not {fc_inputs(drafter)}")
    if wrong:
        yield error(
            id="wrong_shape",
            title="tensors have other shapes than the config says",
            expected="the shapes that follow from the sizes in config.json",
            rule=_model(drafter),
            found=some(wrong),
            change="set the sizes in config.json to those that the weights were trained with",
        )


def check_fc(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a width of `fc` that is not that of the captured layers."""
    if inspected.drafter.aux_states and not inspected.drafter.quantized:
        yield from _fc_width(inspected.drafter)


def check_prefix(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a result if tensors carry a wrapper's prefix, or the one that vLLM adds itself."""
    names = [tensor.name for tensor in inspected.drafter.tensors.values()]
    if prefix := foreign_prefix(names):
        yield error(
            id="prefixed_names",
            title=f'names of tensors begin with "{prefix}"',
            expected="names without it",
            rule=f"{_loader(inspected.drafter)}: knows no name with it",
            found=some(names),
            change=f"rename the tensors without {prefix}",
        )
    prefixed = [
        tensor.name
        for name, tensor in inspected.drafter.tensors.items()
        if tensor.name.startswith("model.") and name != HEAD
    ]
    if prefixed:
        yield warning(
            id="prefixed_names",
            title='names of tensors begin with "model."',
            expected="names without it: vLLM puts model. before each name",
            rule=_loader(inspected.drafter),
            found=some(prefixed),
            change="rename the tensors without model.",
        )


def _fc_width(drafter: DrafterFiles) -> Iterator[CheckResult]:
    fc, wide, width = drafter.tensors.get(_FC), fc_inputs(drafter), drafter.target_hidden_size
    if fc is None or fc.shape == (drafter.hidden_size, wide):
        return
    named, expected = drafter.aux_layers, f"fc.weight {_shape_words((drafter.hidden_size, wide))}"
    rule, subject = _model(drafter), f"fc.weight {_shape_words(fc.shape)}"
    silent = f"{rule}; a CPU's matrix product reads past the end without an error"
    if drafter.format.family is Family.EAGLE1:
        title, rule = "fc does not read an embedding and one state", silent
        change = "correct hidden_size, or architectures if this is no EAGLE-1 drafter"
    elif len(fc.shape) != 2:
        title, change = "fc is no matrix", "save the checkpoint again, whole"
    elif fc.shape == (drafter.hidden_size, len(named or ()) * width):
        return  # the check of captured layers reports that the engine does not count them
    else:
        columns, field = fc.shape[-1], drafter.layers_field[0]
        title, rule = "fc reads another number of captured states than the config names", silent
        expected = f"{drafter.aux_states} captured states x {width} = {wide} columns"
        change = "correct hidden_size and target_hidden_size"
        if columns % width == 0 and fc.shape[0] == drafter.hidden_size:
            subject += f": {columns // width} captured states; {field} names {len(named or ())}"
            change = f'name {columns // width} layers in "{field}"'
        elif columns % drafter.aux_states == 0:
            change = f'"target_hidden_size": {columns // drafter.aux_states}'
    yield error(
        id="fc_width",
        title=title,
        expected=expected,
        rule=rule,
        found=subject,
        change=change,
    )


def _model(drafter: DrafterFiles) -> str:
    """Return the place of vLLM's model of this drafter."""
    row = drafter.format.row
    if row is not None and row.family is Family.BLOCKS:
        return f"{VLLM}, {row.source}"
    return VLLM_EAGLE1_MODEL if drafter.format.family is Family.EAGLE1 else VLLM_MODEL


def _loader(drafter: DrafterFiles) -> str:
    """Return the place where vLLM loads the weights of this drafter."""
    row = drafter.format.row
    if row is not None and row.family is Family.BLOCKS:
        return f"{VLLM}, {row.source} load_weights"
    return VLLM_EAGLE1_LOADER if drafter.format.family is Family.EAGLE1 else VLLM_LOADER


def some(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _shape_words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"


_LOST = (
    "vllm#35548: layers without weights keep whatever memory holds, and nothing is accepted. "
    f"{VLLM} refuses them in deepseek_mtp.py; its other MTP models do not look"
)
_UNLOADED = (
    "vllm#37667, sglang#35797: what an engine builds with a quantisation does not load weights "
    "that are not quantised, and nothing is accepted"
)
_KEPT_WIDE = (
    *("norm", "gate.weight", "embed_tokens", "head.weight", "bias", "scale"),
    *(".fc.", "eh_proj", "e_proj", "h_proj", "input_proj", "linear_proj"),
)
"""Parts of names of tensors that stay in full width where a head is quantised; the last project
embedding and state at its entry."""


def check_heads(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield heads that the config names and the files lack, and the other way round."""
    drafter = inspected.drafter
    wanted, found = heads_wanted(drafter.raw), find_heads(drafter.raw, drafter.tensors)
    heads = 0 if found is None else len(found.heads)
    if wanted and heads < wanted:
        yield error(
            id="mtp_heads_missing",
            title="the checkpoint lacks MTP heads that its config names",
            expected=f"{wanted} heads",
            rule=_LOST,
            found=f"{heads}; quantised" if drafter.quantized else f"{heads}",
            change="copy the heads' tensors from the checkpoint that it was made from, or serve "
            "without MTP",
        )
    elif found is not None and not wanted:
        yield note(
            id="mtp_heads_unnamed",
            title="config.json does not say how many MTP heads there are",
            expected='"num_nextn_predict_layers"',
            rule=f"{VLLM}, config/speculative.py: reads the number there, but for some families",
            found=f"{heads} in the weights",
        )


def check_quantization(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield plain weights where an engine builds quantised ones, because the config says so and
    does not leave them out; and a quantised model beside one that is not."""
    drafter, target, settings = inspected.drafter, inspected.target, inspected.drafter.quantization
    heads = find_heads(drafter.raw, drafter.tensors)
    if heads is None:  # an engine numbers a drafter's layers on from the target's
        settings = {
            field: [_NUMBER.sub("layers.0", str(entry)) for entry in settings.get(field) or ()]
            for field in LEFT_OUT
        }
    matrices = {
        name: tensor
        for name, tensor in drafter.tensors.items()
        # Tools quantise matrices, but many leave the projection at the entry as it is.
        if len(tensor.shape) == 2 and not any(part in name for part in _KEPT_WIDE)
    }
    plain = [
        name
        for name in matrices
        if not any(left_out(one, settings) for one in (name, f"model.{name}"))
    ]
    if drafter.quantized and plain and all(tensor.is_float for tensor in matrices.values()):
        kind = matrices[plain[0]].dtype
        found = f"{kind} in {len(plain)} matrices that no list of {' or '.join(LEFT_OUT[:2])} names"
        yield warning(
            id="weights_not_quantized" if heads is None else "mtp_heads_not_quantized",
            title="the config names a quantisation that the weights do not have"
            if heads is None
            else "the MTP heads are not quantised, and the target is",
            expected="weights as the engine builds them: quantised, or left out in "
            "quantization_config",
            rule=_UNLOADED,
            found=f"{found}, {plain[0]} for example",
            change="drop quantization_config from config.json"
            if heads is None
            else "name the heads' layers in the list of quantization_config; or look whether the "
            "engine accepts anything; in vLLM the heads can be loaded from the checkpoint before "
            'quantisation: --speculative-config \'{"method": "mtp", "model": ...}\'',
            certainty=Certainty.LIKELY,
        )
    if target is not None and drafter.quantized != target.quantized:
        side = "drafter" if drafter.quantized else "target"
        yield note(
            id="quantized_on_one_side",
            title=f"only the {side} is quantised",
            expected="a drafter trained on the states of the model that is served",
            rule="states of a quantised target differ (vllm-ascend#5974, LLMKube#1423)",
            found=f"quantization_config in the {side}'s config",
            certainty=Certainty.POSSIBLE,
        )


_NUMBER = re.compile(r"layers\\?\.\d+")
LEFT_OUT = (
    "ignore",
    "exclude_modules",
    "modules_to_not_convert",
    "ignored_layers",
    "exclude",
    "llm_int8_skip_modules",
)
"""Fields with the layers that are not quantised: of compressed-tensors and ModelOpt, ModelOpt's own
file, transformers and AWQ, fp8 in vLLM, Quark, bitsandbytes."""


def left_out(name: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a quantisation leaves out the layer of a tensor. Entries are names, their
    beginnings or parts, patterns with `*`, or `re:` with a regular expression."""
    layer = name.removesuffix(".weight")
    entries = [entry for field in LEFT_OUT for entry in settings.get(field) or ()]
    return any(_names_layer(str(entry), layer) for entry in entries)


_REPETITION, _REPEATED_GROUP = re.compile(r"[*+?{]"), re.compile(r"\)[*+?{]")
_MOST_REPETITIONS, _LONGEST_NAME = 3, 256
"""Bounds of a regular expression and of the name that it is matched with: at three repetitions the
time grows with the cube of the length."""


def _names_layer(entry: str, layer: str) -> bool:
    """Whether an entry names a layer; True for an expression that could take time without end."""
    if entry.startswith("re:"):
        pattern = entry.removeprefix("re:")
        many = len(_REPETITION.findall(pattern)) > _MOST_REPETITIONS
        if many or _REPEATED_GROUP.search(pattern) or len(layer) > _LONGEST_NAME:
            return True
        try:
            return re.match(pattern, layer) is not None
        except (re.error, OverflowError, RecursionError):
            return False
    if "*" in entry:
        return fnmatchcase(layer, entry)
    return f".{entry}." in f".{layer}."
