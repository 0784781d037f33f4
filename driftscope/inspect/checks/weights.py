"""Checks the numbers in a drafter's tensors: types, zeros, lost scales, copies of the target's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from driftscope.inspect.checks.result import (
    VLLM_LOADER,
    Certainty,
    CheckLevel,
    CheckResult,
    Inspected,
    error,
    note,
    warning,
)
from driftscope.inspect.checks.tensors import D2T, EMBEDDING, HEAD, some
from driftscope.inspect.files import IN_TORCH, StoredTensor

DEAD_SHARE = 0.01
"""Share of a matrix's rows or columns that may be zero: padded vocabularies have a few."""


def check_values(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield tensors that hold NaN or infinity, or numbers of another type's bits, whose rows or
    columns are all zero, or whose scale is lost. Reads every tensor."""
    lost, odd, tensors = list[str](), list[str](), inspected.drafter.tensors
    scaled = {name.rpartition(".")[0] for name in tensors if any(map(name.count, _SCALES))}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if tensor.is_float:
            yield from _values(name, tensor, lost, odd)
        elif tensor.dtype in _EIGHT_BITS and module != name and module not in scaled:
            lost.append(f"{name} is {tensor.dtype} without a scale")
    if lost:
        yield error(
            id="scale_lost",
            title="matrices look quantised, without their scales",
            expected="numbers of the size that training leaves, or scales beside 8-bit ones",
            rule="quantisation divides a matrix by a scale so that its largest number is the "
            "largest of the type",
            found=some(lost),
            change="export the weights again from those before quantisation",
            certainty=Certainty.LIKELY,
        )

    if odd:
        yield error(
            id="odd_numbers",
            title="matrices hold numbers that no training leaves",
            expected=f"numbers spread around 0, the largest from {SMALLEST:g} to {LARGEST:g}",
            rule="bfloat16 that is read as float16 has no number near 0, and float16 that is read "
            "as bfloat16 next to no others; bytes in the other order can be any number",
            found=some(odd),
            change="export the weights again, and convert types by value, not by bits",
            certainty=Certainty.LIKELY,
        )


def check_types(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a type that the config does not name, or a mix of types."""
    drafter = inspected.drafter
    types = {tensor.dtype for tensor in drafter.tensors.values() if tensor.is_float}
    names = sorted(IN_TORCH[kind] for kind in types)
    if drafter.quantized:
        return
    whole = [
        name
        for name, tensor in drafter.tensors.items()
        if name.endswith(".weight") and not tensor.is_float and tensor.dtype not in _EIGHT_BITS
    ]
    if whole:
        yield error(
            id="whole_numbers",
            title="weights have a type of whole numbers, and the config names no quantisation",
            expected="BF16, F16 or F32",
            rule=f"{VLLM_LOADER}: copies them by value into weights of the served type",
            found=f"{drafter.tensors[whole[0]].dtype} in {some(whole)}",
            change="export the weights again, or add the quantization_config that belongs to them",
        )
    if len(types) > 1:
        yield note(
            id="mixed_types",
            title="the weights have several types",
            expected="one type",
            rule="an engine converts all of them to one",
            found=", ".join(names),
        )
        return
    named = drafter.raw.get("dtype", drafter.raw.get("torch_dtype"))
    if named is not None and names and str(named).removeprefix("torch.") != names[0]:
        yield note(
            id="other_type",
            title="the weights have another type than the config names",
            expected=str(named),
            rule="an engine converts them to the type that the config names",
            found=names[0],
        )


def _values(
    name: str, tensor: StoredTensor, lost: list[str], odd: list[str]
) -> Iterator[CheckResult]:
    bad = dead = rows = near = tiny = 0
    alive = np.zeros(tensor.shape[1:], bool)
    largest = 0.0
    for block in tensor.blocks():
        bad += int(block.size - np.isfinite(block).sum())
        size = np.abs(block)
        top = float(size.max(initial=0))
        largest = max(largest, top)
        equal = bool(block.min() == block.max())
        near += block.size if equal else int((size <= top / 100).sum())
        tiny += int((size < top * TINY).sum() - (block == 0).sum())
        alive |= block.any(axis=0)
        flat = block.reshape(len(block), -1)
        dead, rows = dead + int((~flat.any(axis=1)).sum()), rows + len(flat)
    if bad:
        yield error(
            id="not_finite",
            title=f"{name} holds NaN or infinity",
            expected="finite numbers",
            rule="one such number makes every draft that reads it arbitrary",
            found=f"{bad} of {tensor.elements} numbers",
            change="export the weights again; train in float32 or bfloat16 if float16 overflowed",
        )
    whole = len(tensor.shape) < 2
    if not whole and largest in SCALED_TO:
        lost.append(f"the largest number of {name} is that of {SCALED_TO[largest]}, {largest:g}")
    if not whole and not bad and rows and largest > 0:
        if not SMALLEST <= largest <= LARGEST:
            odd.append(f"the largest number of {name} is {largest:.1g}")
        elif near < NEAR_ZERO * tensor.elements and tensor.elements >= MANY:
            odd.append(f"{near} of {tensor.elements} numbers of {name} are near 0")
        elif tiny > MOST_TINY * tensor.elements:
            odd.append(f"{tiny} of {tensor.elements} numbers of {name} are next to 0")
    if name.endswith(".bias"):  # which may be zero
        return
    idle = alive.size - int(alive.sum())
    if rows and (
        dead == rows or (not whole and (dead > DEAD_SHARE * rows or idle > DEAD_SHARE * alive.size))
    ):
        yield CheckResult(
            id="dead_rows",
            level=CheckLevel.ERROR if dead == rows else CheckLevel.WARNING,
            title=f"rows or columns of {name} are all zero",
            expected=f"at most {DEAD_SHARE:.0%} of them",
            rule="a row of zeros computes nothing, and a column reads nothing: they were not "
            "trained, or not saved",
            found=f"{dead} of {rows} rows" + f", {idle} of {alive.size} columns" * (not whole),
            change="export the weights again",
            certainty=Certainty.CERTAIN if dead == rows else Certainty.LIKELY,
        )


SMALLEST, LARGEST = 1e-5, 1e4
"""Bounds of the largest number of a matrix: 0.1 to 100 in published drafters."""
NEAR_ZERO, MANY = 0.001, 10_000
"""Least share of a matrix's numbers below a hundredth of its largest, and numbers from which it is
judged: 1 % of evenly spread numbers are, and more of trained ones."""
TINY, MOST_TINY = 1e-5, 0.2
"""Part of the largest number, and largest share of a matrix's numbers that may be smaller without
being 0: 4e-5 of normally distributed ones are."""
SCALED_TO = {
    448.0: "float8_e4m3fn",
    240.0: "float8_e4m3fnuz",
    57344.0: "float8_e5m2",
    127.0: "int8",
    128.0: "int8",
}
"""Largest numbers of the types to which weights are scaled."""
_EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
_SCALES = ("scale", "SCB")
"""Parts of the names of a matrix's scales, which stand beside its `weight`; SCB is
bitsandbytes'."""
_BEGINNING = 4096
"""Numbers of a tensor by which another one is found that may be equal to it."""


def check_repeated(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield weights that hold the same numbers: one of them was lost to a copy of the other."""
    seen, repeated = dict[tuple[object, bytes], StoredTensor](), list[str]()
    for name, tensor in inspected.drafter.tensors.items():
        if not tensor.is_float or name in (EMBEDDING, HEAD) or name.endswith(".bias"):
            continue
        numbers = tensor.flat()
        first = numbers[:_BEGINNING]
        if not first.size or (first == first[0]).all():  # norms that are all 1
            continue
        other = seen.setdefault((tensor.shape, first.tobytes()), tensor)
        if other is not tensor and np.array_equal(other.flat(), numbers):
            repeated.append(f"{other.name} and {tensor.name}")
    if repeated:
        yield warning(
            id="weights_repeated",
            title="weights that are trained apart hold the same numbers",
            expected="different numbers",
            rule="training moves each of them otherwise",
            found=some(repeated),
            change="export the weights again: a converter wrote one in the other's place",
            certainty=Certainty.LIKELY,
        )


UNLIKE_BELOW = 0.5
"""Mean cosine of a token's row in both embeddings below which they count as unrelated. Rows of
independent embeddings have a cosine near 0; fine-tuned ones stay near 1."""
SAMPLED_ROWS = 4096
"""Rows that are compared, spread evenly over the vocabulary."""


def check_width(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a width of captured states that is not the target's."""
    drafter, target = inspected.drafter, inspected.target
    if target is not None and drafter.target_hidden_size != target.hidden_size:
        yield error(
            id="target_width",
            title="the drafter was made for a target of another width",
            expected=f'"target_hidden_size": {target.hidden_size}',
            rule="fc reads the target's states, whose width is its hidden_size",
            found=f"{drafter.target_hidden_size}",
            change="use a drafter of this target",
        )


def check_embedding(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield how the drafter's embedding relates to the target's, if both are there."""
    own = inspected.drafter.tensors.get(EMBEDDING)
    targets = inspected.target.embedding() if inspected.target else None
    if own is None or targets is None or own.shape != targets.shape or len(own.shape) != 2:
        return
    if not (own.is_float and targets.is_float):
        return
    first, second = _sampled(own), _sampled(targets)
    cosine = float(np.mean(_cosines(first, second)))
    if np.array_equal(first, second):
        yield note(
            id="embedding_copied",
            title="the embedding is a copy of the target's",
            expected="no copy is needed",
            rule=f"{VLLM_LOADER}: shares the target's if the drafter has none",
            found=f"{own.bytes / 1e6:.0f} MB that could be left out",
        )
    elif cosine < UNLIKE_BELOW:
        yield warning(
            id="embedding_not_targets",
            title="the embedding is not the target's",
            expected="the target's embedding, copied or fine-tuned",
            rule="EAGLE trains with the target's embedding",
            found=f"rows of both have a mean cosine of {cosine:.2f}",
            change="leave embed_tokens out of the weights; with --target this is tried",
            certainty=Certainty.LIKELY,
        )


HEAD_IS_TARGETS = "head_is_targets"
_SHIFTS = (-2, -1, 1, 2)
ALIKE_ABOVE = 0.5
"""Cosine of two rows of heads above which they are alike. In the shipped drafters it is 0.92 on
average for the target's row of the same token, and 0.17 for the next one."""
OTHER_ROWS = 0.02
"""Share of the rows that may be like another token's row: none in the shipped drafters."""


def check_head(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield that a head of the drafter's own holds the target's rows: those of other tokens; or
    equal ones, so that it was not trained, or a converter put them in its place."""
    drafter, target = inspected.drafter, inspected.target
    own, targets = drafter.tensors.get(HEAD), target.head() if target else None
    if own is None and drafter.draft_vocab_size == drafter.vocab_size:
        yield note(
            id="head_shared",
            title="the drafter has no head of its own",
            expected="lm_head.weight, unless it was trained with the target's head",
            rule=f"{VLLM_LOADER}: shares the target's if the drafter has none",
            found="no lm_head.weight",
        )
    if own is None or targets is None or not (own.is_float and targets.is_float):
        return
    if len(own.shape) != 2 or len(targets.shape) != 2 or own.shape[1] != targets.shape[1]:
        return
    rows, table = _spread(own.shape[0]), drafter.tensors.get(D2T)
    if table is not None and (table.shape != own.shape[:1] or not table.is_readable):
        return
    ids = rows if table is None else rows + table.rows(rows).astype(np.int64)
    if not len(ids) or ids.min() < 0 or ids.max() >= targets.shape[0]:
        return
    first, other = _numbers(own, rows), np.zeros(len(rows), bool)
    same = _numbers(targets, ids)
    fits = _cosines(first, same)
    for shift in _SHIFTS:
        near = _numbers(targets, (ids + shift).clip(0, targets.shape[0] - 1))
        fit = _cosines(first, near)
        other |= (fit > ALIKE_ABOVE) & (fits < fit / 2)
    if other.mean() > OTHER_ROWS:
        at = rows[other]
        yield error(
            id="head_of_other_tokens",
            title="rows of the head are those of other tokens than their ids say",
            expected="each row most like the target's row of the token that it drafts",
            rule="d2t and lm_head.weight have one order; a head that began as the target's stays "
            "like it in training",
            found=f"{other.mean():.0%} of the rows, from {at.min()} to {at.max()}, are like the "
            "target's row of a token one or two ids away, and not like that of their own",
            change="export d2t and the head again, from the same checkpoint",
            certainty=Certainty.LIKELY,
        )
    if np.array_equal(first, same):
        yield warning(
            id=HEAD_IS_TARGETS,
            title="the head is a copy of the target's",
            expected="a head that was trained with the drafter's layers",
            rule="EAGLE-3 trains a head of its own; a copy costs a shipped drafter 13 %",
            found="rows of lm_head.weight equal the target's",
            change="export the drafter's own head, unless its trainer kept the target's",
            certainty=Certainty.POSSIBLE,
        )


def check_norms(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield norms of ones beside trained ones: their weights were lost, or never trained; and a
    final norm that is the target's."""
    norms = {
        name: tensor
        for name, tensor in inspected.drafter.tensors.items()
        if "norm" in name and tensor.is_float and len(tensor.shape) == 1
    }
    ones = [name for name, one in norms.items() if bool((one.array() == 1).all())]
    if ones and len(ones) < len(norms):
        yield note(
            id="norms_of_ones",
            title="norms hold nothing but 1",
            expected="weights that training has moved, as in the other norms",
            rule="an engine keeps ones for a norm whose weights it does not find",
            found=", ".join(ones),
        )
    target = inspected.target.final_norm() if inspected.target else None
    own = norms.get("norm.weight")
    if own and target and target.is_float and np.array_equal(own.array(), target.array()):
        yield note(
            id="norm_is_targets",
            title="the final norm is a copy of the target's",
            expected="a norm that was trained with the drafter's head",
            rule="trainers begin with the target's and train it",
            found="norm.weight equals the target's",
        )


def _cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosines of corresponding rows, [rows, width] each."""
    sizes = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / np.where(sizes > 0, sizes, 1))


def _sampled(tensor: StoredTensor) -> NDArray[np.float32]:
    return _numbers(tensor, _spread(tensor.shape[0]))


def _spread(rows: int) -> NDArray[np.int64]:
    """Return SAMPLED_ROWS of the numbers below `rows`, or all, evenly spread."""
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.int64))


def _numbers(tensor: StoredTensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(tensor.rows(rows), np.float32)
