"""Checks which engine serves an EAGLE-1 checkpoint: vLLM and SGLang want different ones."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.boundary.strict_json import dumps
from driftscope.inspect.checks.check_result import CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import SGLANG_EAGLE1, VLLM_EAGLE1_NAME
from driftscope.inspect.checks.expected_tensors import FC_BIAS
from driftscope.inspect.files.checkpoint_format import EAGLE1_IN_SGLANG


def check_engine(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield that the other engine does not know the architecture that config.json names."""
    drafter = inspected.drafter
    other = "vLLM" if drafter.for_sglang else "SGLang"
    name = "EagleLlamaForCausalLM" if drafter.for_sglang else EAGLE1_IN_SGLANG
    yield CheckResult(
        id="architecture_of_one_engine",
        level=Level.NOTE,
        title=f"{other} does not serve EAGLE-1 under this name of the architecture",
        expected=f'"architectures": ["{name}"] for {other}',
        rule=VLLM_EAGLE1_NAME if drafter.for_sglang else SGLANG_EAGLE1,
        there=f'"architectures": {dumps(drafter.raw.get("architectures"))}',
    )


def check_bias(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield that SGLang makes up a bias that the file does not have."""
    drafter = inspected.drafter
    if FC_BIAS in drafter.tensors:
        return
    yield CheckResult(
        id="bias_random_in_sglang",
        level=Level.WARNING if drafter.for_sglang else Level.NOTE,
        title="SGLang adds a bias of random numbers in fc",
        expected=f"{FC_BIAS} for SGLang, and none for vLLM, which refuses it",
        rule=f"{SGLANG_EAGLE1}: fc has a bias, whose numbers stay random if the file has none",
        there=f"no {FC_BIAS}",
        change=f"for SGLang, add {FC_BIAS} of zeros to a copy" if drafter.for_sglang else None,
    )
