"""Checks of heads for multi-token prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from driftscope.inspect.checkpoints import find_heads, heads_wanted
from driftscope.inspect.checks.result import (
    VLLM,
    Certainty,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)

_LOST = (
    "vllm#35548: layers without weights keep whatever memory holds, and nothing is accepted. "
    f"{VLLM} refuses them in deepseek_mtp.py; its other MTP models do not look"
)
_UNLOADED = (
    "vllm#37667, sglang#35797: heads that an engine builds with the target's quantisation do not "
    "load weights that are not quantised, and nothing is accepted"
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
    there = 0 if found is None else len(found.heads)
    if wanted and there < wanted:
        yield error(
            id="mtp_heads_missing",
            title="the checkpoint lacks MTP heads that its config names",
            expected=f"{wanted} heads",
            rule=_LOST,
            there=f"{there}; quantised" if drafter.quantized else f"{there}",
            change="copy the heads' tensors from the checkpoint that it was made from, or serve "
            "without MTP",
        )
    elif found is not None and not wanted:
        yield note(
            id="mtp_heads_unnamed",
            title="config.json does not say how many MTP heads there are",
            expected='"num_nextn_predict_layers"',
            rule=f"{VLLM}, config/speculative.py: reads the number there, but for some families",
            there=f"{there} in the weights",
        )


def check_quantization(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield heads that are not quantised where an engine builds them quantised: the config says
    that the target is, and does not leave them out."""
    drafter = inspected.drafter
    heads = find_heads(drafter.raw, drafter.tensors)
    settings = drafter.quantization
    if heads is None or not settings:
        return
    # Tools quantise matrices, but many leave the projection at the entry as it is.
    stored = [tensor for name in heads.names if len((tensor := drafter.tensors[name]).shape) == 2]
    matrices = [one for one in stored if not any(part in one.name for part in _KEPT_WIDE)]
    plain = [
        matrix for matrix in matrices if matrix.is_float and not left_out(matrix.name, settings)
    ]
    if plain and all(matrix.is_float for matrix in matrices):
        yield warning(
            id="mtp_heads_not_quantized",
            title="the MTP heads are not quantised, and the target is",
            expected="heads that the engine builds as they are stored: quantised, or left out in "
            "quantization_config",
            rule=_UNLOADED,
            there=f"{plain[0].dtype} in {len(plain)} matrices of the heads that no list of "
            f"{' or '.join(LEFT_OUT[:2])} names, {plain[0].name} for example",
            change="name the heads' layers in the list of quantization_config; or look whether the "
            "engine accepts anything; in vLLM the heads can be loaded from the checkpoint before "
            'quantisation: --speculative-config \'{"method": "mtp", "model": ...}\'',
            certainty=Certainty.LIKELY,
        )


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
