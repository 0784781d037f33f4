"""Checks the MTP heads inside a target's checkpoint: tools that quantise targets lose them."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import VLLM
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.mtp_heads import MtpHeads, find_heads, heads_wanted
from driftscope.inspect.files.safetensors_file import StoredTensor

_LOST = (
    "vllm#35548: layers without weights keep whatever memory holds, and nothing is accepted. "
    f"{VLLM} refuses them in deepseek_mtp.py; its other MTP models do not look"
)
_UNLOADED = (
    "vllm#37667, sglang#35797: heads that an engine builds with the target's quantisation do not "
    "load weights that are not quantised, and nothing is accepted"
)
_KEPT_WIDE = ("norm", "gate.weight", "embed_tokens", "head.weight", "bias")
"""Parts of names of tensors that stay in full width where a head is quantised."""


def check_heads(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield heads that the config names and the files lack, and the other way round."""
    drafter = inspected.drafter
    wanted, found = heads_wanted(drafter.raw), _heads(drafter)
    there = 0 if found is None else len(found.heads)
    if wanted and there < wanted:
        yield CheckResult(
            id="mtp_heads_missing",
            level=Level.ERROR,
            title="the checkpoint lacks MTP heads that its config names",
            expected=f"{wanted} heads",
            rule=_LOST,
            there=f"{there}; quantised" if drafter.quantized else f"{there}",
            change="copy the heads' tensors from the checkpoint that it was made from, or serve "
            "without MTP",
        )
    elif found is not None and not wanted:
        yield CheckResult(
            id="mtp_heads_unnamed",
            level=Level.NOTE,
            title="config.json does not say how many MTP heads there are",
            expected='"num_nextn_predict_layers"',
            rule=f"{VLLM}, config/speculative.py: reads the number there, but for some families",
            there=f"{there} in the weights",
        )


def check_entries(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield tensors that a head lacks, or that have another shape than its layout."""
    drafter = inspected.drafter
    heads = _heads(drafter)
    if heads is None:
        return
    hidden = drafter.hidden_size
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(heads.layout.norms, (hidden,))
    shapes[heads.layout.projection] = (hidden, 2 * hidden)
    missing, wrong = list[str](), list[str]()
    for number in heads.heads:
        mine = heads.of(number)
        if mine.keys() <= shapes.keys():
            missing.append(f"the decoder layer of head {number}")
        for rest, shape in shapes.items():
            name = mine.get(rest)
            tensor = drafter.tensors.get(name) if name else None
            if tensor is None:
                missing.append(f"{rest} of head {number}")
            elif tensor.is_float and tensor.shape != shape:
                wrong.append(f"{name} {tensor.shape}, not {shape}")
    if missing:
        yield _entry("missing_tensor", "an MTP head lacks tensors", ", ".join(missing))
    if wrong:
        yield _entry("wrong_shape", "tensors of an MTP head have other shapes", ", ".join(wrong))


def check_quantization(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield heads that are not quantised in a checkpoint whose config says that it is."""
    drafter = inspected.drafter
    heads = _heads(drafter)
    if heads is None or not drafter.quantized:
        return
    matrices = [drafter.tensors[name] for name in heads.names if _is_matrix(heads, name, drafter)]
    if matrices and all(each.is_float for each in matrices):
        yield CheckResult(
            id="mtp_heads_not_quantized",
            level=Level.WARNING,
            title="the MTP heads are not quantised, and the target is",
            expected="heads that the engine builds as they are stored",
            rule=_UNLOADED,
            there=f"{matrices[0].dtype} in {len(matrices)} matrices of the heads",
            change="look whether the engine accepts anything; in vLLM the heads can be loaded from "
            'the checkpoint before quantisation: --speculative-config \'{"method": "mtp", '
            '"model": ...}\'',
            certainty=Certainty.POSSIBLE,
        )


def _heads(drafter: DrafterFiles) -> MtpHeads | None:
    return find_heads(drafter.raw, drafter.tensors)


def _is_matrix(heads: MtpHeads, name: str, drafter: DrafterFiles) -> bool:
    """Whether a tensor is a matrix that tools quantise: not the projection at the entry, which many
    leave as it is."""
    tensor: StoredTensor = drafter.tensors[name]
    entry = heads.layout.projection in name
    return len(tensor.shape) == 2 and not entry and not any(part in name for part in _KEPT_WIDE)


def _entry(id_: str, title: str, there: str) -> CheckResult:
    return CheckResult(
        id=id_,
        level=Level.ERROR,
        title=title,
        expected="norms of embedding and state [H], a matrix [H, 2H] that reads both, and a layer",
        rule=_LOST,
        there=there,
        change="copy the heads' tensors from the checkpoint that it was made from",
    )
