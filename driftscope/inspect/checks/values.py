"""Checks the numbers of all tensors: not finite, dead rows, types."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level
from driftscope.inspect.files.safetensors_file import StoredTensor

DEAD_SHARE = 0.01
"""Share of a matrix's rows that may be all zero: padded vocabularies have a few."""
_TYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}


def check_values(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield tensors that hold NaN or infinity, or whose rows are all zero. Reads every tensor."""
    for name, tensor in inspected.drafter.tensors.items():
        if tensor.is_float:
            yield from _values(name, tensor)


def check_types(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a type that the config does not name, or a mix of types."""
    drafter = inspected.drafter
    types = {each.dtype for each in drafter.tensors.values() if each.is_float}
    names = sorted(_TYPES[each] for each in types)
    if drafter.quantized:
        return
    if len(types) > 1:
        yield CheckResult(
            id="mixed_types",
            level=Level.NOTE,
            title="the weights have several types",
            expected="one type",
            rule="an engine converts all of them to one",
            there=", ".join(names),
        )
        return
    named = drafter.raw.get("dtype", drafter.raw.get("torch_dtype"))
    if named is not None and names and str(named).removeprefix("torch.") != names[0]:
        yield CheckResult(
            id="other_type",
            level=Level.NOTE,
            title="the weights have another type than the config names",
            expected=str(named),
            rule="an engine converts them to the type that the config names",
            there=names[0],
        )


def _values(name: str, tensor: StoredTensor) -> Iterator[CheckResult]:
    bad = dead = rows = 0
    for block in tensor.blocks():
        bad += int(block.size - np.isfinite(block).sum())
        flat = block.reshape(len(block), -1)
        dead, rows = dead + int((~flat.any(axis=1)).sum()), rows + len(flat)
    if bad:
        yield CheckResult(
            id="not_finite",
            level=Level.ERROR,
            title=f"{name} holds NaN or infinity",
            expected="finite numbers",
            rule="one such number makes every draft that reads it arbitrary",
            there=f"{bad} of {tensor.elements} numbers",
            change="export the weights again; train in float32 or bfloat16 if float16 overflowed",
        )
    whole = len(tensor.shape) < 2
    if rows and (dead == rows or (not whole and dead > DEAD_SHARE * rows)):
        yield CheckResult(
            id="dead_rows",
            level=Level.ERROR if dead == rows else Level.WARNING,
            title=f"rows of {name} are all zero",
            expected=f"at most {DEAD_SHARE:.0%} of the rows",
            rule="a row of zeros computes nothing, and was not trained or not saved",
            there=f"{dead} of {rows} rows",
            change="export the weights again",
            certainty=Certainty.CERTAIN if dead == rows else Certainty.LIKELY,
        )
