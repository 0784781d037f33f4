"""Checks the norm flags of a config against the norms in the weights.

Most public mistakes are of this kind, and each is silent: an engine runs without the norm, or with
one whose weights are all 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from driftscope.boundary.strict_json import dumps
from driftscope.inspect.checks.check_result import Certainty, CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import (
    SPECFORGE,
    SPECULATORS,
    VLLM_LOADER,
    VLLM_MODEL,
    VLLM_SPECULATORS,
)
from driftscope.inspect.files.drafter_files import DrafterFiles

FLAGS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
_TRUE = ("true", "1")
_PER_STATE, _JOINED = "fc_norm.", "input_norm."
_WEIGHTS = {"fc_norm": _PER_STATE, "norm_before_fc": _JOINED}


def check_norm_flags(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield flags that do not fit the weights, that no engine reads, or that are no boolean."""
    drafter = inspected.drafter
    swapped = _swapped(drafter)
    if swapped is not None:
        yield swapped
    else:
        yield from _flag_and_weights(drafter, "fc_norm")
        yield from _flag_and_weights(drafter, "norm_before_fc")
    yield from _both(drafter)
    yield from _unread(drafter)
    yield from _not_boolean(drafter)
    yield from _all_ones(drafter)


def check_norm_meaning(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield flags that trainers and engines mean differently."""
    drafter = inspected.drafter
    normed = any(drafter.flag(flag) or drafter.named(_WEIGHTS[flag]) for flag in _WEIGHTS)
    if drafter.flag("norm_output") and not normed:
        yield CheckResult(
            id="norm_output_of_specforge",
            level=Level.WARNING,
            title="norm_output is on in a drafter without the other norms of EAGLE-3.1",
            expected="norm_output together with fc_norm or norm_before_fc, as EAGLE-3.1 trains it",
            rule=f"{SPECFORGE}: writes true for EAGLE-3, which feeds the un-normed state",
            there='"norm_output": true, no fc_norm, no norm_before_fc',
            change='"norm_output": false, if SpecForge 0.2.0 or older trained it; with --target '
            "both are tried",
            certainty=Certainty.POSSIBLE,
        )
    if drafter.flag("fc_norm") and not drafter.flag("norm_output"):
        yield CheckResult(
            id="norm_output_off",
            level=Level.WARNING,
            title="norm_output is off in a drafter with fc_norm",
            expected="both, as EAGLE-3.1 trains them",
            rule=f"{VLLM_MODEL}: feeds the residual stream. Converters lost the field (vllm#46488)",
            there=f'"norm_output": {_written(drafter, "norm_output")}',
            change='"norm_output": true, if it was trained so; with --target both are tried',
            certainty=Certainty.POSSIBLE,
        )
    if drafter.format.speculators and any(drafter.flag(n) for n in ("fc_norm", "norm_output")):
        yield CheckResult(
            id="flags_need_newer_vllm",
            level=Level.NOTE,
            title="older vLLM ignores fc_norm and norm_output of the speculators format",
            expected="a vLLM that has vllm#46488 (merged June 2026)",
            rule=f"{VLLM_SPECULATORS}: copies both fields; before, both were false",
            there="a config in the speculators format that sets them",
        )


def _flag_and_weights(drafter: DrafterFiles, flag: str) -> Iterator[CheckResult]:
    there, prefix = drafter.named(_WEIGHTS[flag]), _WEIGHTS[flag]
    if drafter.flag(flag) and not there:
        yield CheckResult(
            id=f"{flag}_missing",
            level=Level.ERROR,
            title=f"{flag} is on, and its weights are missing",
            expected=f"{prefix}*: without them each weight is 1",
            rule=VLLM_MODEL,
            there=f'"{flag}": true, no {prefix}*',
            change=f'save the weights {prefix}*, or write "{flag}": false if it was trained '
            "without",
        )
    elif there and not drafter.flag(flag):
        dropped = flag == "norm_before_fc"
        yield CheckResult(
            id=f"{flag}_unused",
            level=Level.ERROR,
            title=f"the weights of {flag} are there, and the flag is off",
            expected=f'"{flag}": true',
            rule=f"{VLLM_LOADER}: {'drops input_norm silently' if dropped else 'refuses fc_norm'}",
            there=f'"{flag}": {_written(drafter, flag)}, and {len(there)} of {prefix}*',
            change=f'"{flag}": true',
        )
    elif flag == "fc_norm" and there and len(there) != drafter.aux_states:
        yield CheckResult(
            id="fc_norm_count",
            level=Level.ERROR,
            title="fc_norm has another number of norms than there are captured states",
            expected=f"{drafter.aux_states} norms",
            rule=VLLM_MODEL,
            there=f"{len(there)} of {prefix}*",
            change="name as many captured layers as there are norms",
        )


def _swapped(drafter: DrafterFiles) -> CheckResult | None:
    """Return a result if one flag is on and only the other's weights are there."""
    for flag, other in (("fc_norm", "norm_before_fc"), ("norm_before_fc", "fc_norm")):
        own, others = drafter.named(_WEIGHTS[flag]), drafter.named(_WEIGHTS[other])
        if drafter.flag(flag) and not drafter.flag(other) and others and not own:
            return CheckResult(
                id="fc_norm_and_norm_before_fc_swapped",
                level=Level.ERROR,
                title=f"{flag} is on, and the weights are those of {other}",
                expected=f"{_WEIGHTS[flag]}*; fc_norm is one norm per captured state, "
                "norm_before_fc one over all of them",
                rule=f"{VLLM_MODEL}; speculators#610 and #670 tell them apart",
                there=f'"{flag}": true, and {_WEIGHTS[other]}*',
                change=f'"{flag}": false, "{other}": true',
            )
    return None


def _both(drafter: DrafterFiles) -> Iterator[CheckResult]:
    if drafter.flag("fc_norm") and drafter.flag("norm_before_fc"):
        yield CheckResult(
            id="two_norms_before_fc",
            level=Level.WARNING,
            title="fc_norm and norm_before_fc are both on",
            expected="one of them; EAGLE-3.1 has fc_norm",
            rule=f"{SPECULATORS}; {VLLM_MODEL}: applies one after the other",
            there='"fc_norm": true, "norm_before_fc": true',
            change='"norm_before_fc": false, if it was trained with fc_norm alone',
            certainty=Certainty.LIKELY,
        )


def _unread(drafter: DrafterFiles) -> Iterator[CheckResult]:
    """Yield flags that are set where the engine does not look."""
    layer = drafter.raw.get("transformer_layer_config")
    places: list[tuple[str, Any, tuple[str, ...]]] = [
        ("eagle_config", drafter.raw.get("eagle_config"), ("fc_norm", "norm_output")),
        ("transformer_layer_config", layer, FLAGS),
    ]
    for place, fields, names in places:
        for name in names if isinstance(fields, dict) else ():
            if fields.get(name) and not drafter.flag(name):
                yield CheckResult(
                    id="flag_not_read",
                    level=Level.ERROR,
                    title=f"{name} is set in {place}, where it is not read",
                    expected=f"{name} at the top level of config.json",
                    rule=VLLM_SPECULATORS if drafter.format.speculators else VLLM_MODEL,
                    there=f'"{place}": {{"{name}": true}}, and none at the top level',
                    change=f'"{name}": true at the top level',
                )


def _not_boolean(drafter: DrafterFiles) -> Iterator[CheckResult]:
    for name in FLAGS:
        value = drafter.raw.get(name)
        if value is not None and not isinstance(value, bool):
            yield CheckResult(
                id="flag_not_boolean",
                level=Level.ERROR if value in ("false", "False", "0") else Level.WARNING,
                title=f"{name} is no boolean",
                expected="true or false",
                rule=f"{VLLM_MODEL}: any text counts as true",
                there=f'"{name}": {value!r}',
                change=f'"{name}": {dumps(str(value).lower() in _TRUE)}',
            )


def _all_ones(drafter: DrafterFiles) -> Iterator[CheckResult]:
    for flag, prefix in _WEIGHTS.items():
        norms = [each for each in drafter.named(prefix).values() if each.is_float]
        if drafter.flag(flag) and norms and all(np.all(each.array() == 1) for each in norms):
            yield CheckResult(
                id="norm_all_ones",
                level=Level.WARNING,
                title=f"all weights of {flag} are exactly 1",
                expected="weights that training moved",
                rule="a norm starts at 1, and each step of training changes it",
                there=f"{len(norms)} of {prefix}*, all 1",
                change="export the trained norms; a conversion may have made these anew",
                certainty=Certainty.LIKELY,
            )


def _written(drafter: DrafterFiles, name: str) -> str:
    value = drafter.fields.get(name)
    return "absent" if value is None else str(value).lower()
