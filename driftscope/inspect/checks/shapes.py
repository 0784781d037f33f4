"""Checks the names and shapes of a drafter's tensors against its config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from driftscope.inspect.checks.check_result import CheckResult, Inspected, Level
from driftscope.inspect.checks.engine_rules import (
    VLLM_EAGLE1_LOADER,
    VLLM_EAGLE1_MODEL,
    VLLM_LOADER,
    VLLM_MODEL,
)
from driftscope.inspect.checks.expected_tensors import (
    D2T,
    EMBEDDING,
    HEAD,
    fc_inputs,
    optional,
    required,
)
from driftscope.inspect.files.checkpoint_format import Family
from driftscope.inspect.files.drafter_files import AUX_LAYERS, DrafterFiles

_FEW = 3
"""Number of tensors that a result names one by one."""
_JUDGED_ELSEWHERE = ("fc_norm.", "input_norm.", D2T)
_FC = "fc.weight"
_IGNORED = ("mask_hidden", "rotary_emb.inv_freq")
"""Parts of names that engines skip."""


def check_shapes(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield missing, unexpected and misshapen tensors. A quantised drafter's are packed, and are
    not compared."""
    drafter = inspected.drafter
    if drafter.quantized:
        return
    needed = required(drafter)
    known = needed | optional(drafter)
    yield from _missing(drafter, needed)
    yield from _unexpected(drafter, known)
    yield from _fc_width(drafter)
    wrong = [
        f"{name} {_words(drafter.tensors[name].shape)}, not {_words(shape)}"
        for name, shape in known.items()
        if name in drafter.tensors and name != _FC and drafter.tensors[name].shape != shape
    ]
    if wrong:
        yield CheckResult(
            id="wrong_shape",
            level=Level.ERROR,
            title="tensors have other shapes than the config says",
            expected="the shapes that follow from the sizes in config.json",
            rule=_model(drafter),
            there=_some(wrong),
            change="set the sizes in config.json to those that the weights were trained with",
        )


def check_prefix(inspected: Inspected) -> Iterator[CheckResult]:
    """Yield a result if tensors carry the prefix that vLLM adds itself."""
    prefixed = [
        each.name
        for name, each in inspected.drafter.tensors.items()
        if each.name.startswith("model.") and name != HEAD
    ]
    if prefixed:
        yield CheckResult(
            id="prefixed_names",
            level=Level.WARNING,
            title="names of tensors begin with model.",
            expected="names without it: vLLM puts model. before each name",
            rule=_loader(inspected.drafter),
            there=_some(prefixed),
            change="rename the tensors without model.",
        )


def _missing(drafter: DrafterFiles, needed: Iterable[str]) -> Iterator[CheckResult]:
    missing = [name for name in needed if name not in drafter.tensors]
    own_width = drafter.hidden_size != drafter.target_hidden_size
    if own_width and EMBEDDING not in drafter.tensors:
        missing.append(EMBEDDING)
    if drafter.draft_vocab_size != drafter.vocab_size and HEAD not in drafter.tensors:
        missing.append(HEAD)
    if missing:
        yield CheckResult(
            id="missing_tensor",
            level=Level.ERROR,
            title="tensors are missing",
            expected=f"{len(missing)} more tensors; without them layers keep random weights",
            rule=_model(drafter),
            there=f"no {_some(missing)}",
            change="save the checkpoint again, whole",
        )


def _unexpected(drafter: DrafterFiles, known: Iterable[str]) -> Iterator[CheckResult]:
    known = set(known)
    extra = [
        name
        for name, each in drafter.tensors.items()
        if (name not in known or _is_foreign(drafter, each.name))
        and not name.startswith(_JUDGED_ELSEWHERE)
        and not any(part in name for part in _IGNORED)
    ]
    if extra:
        yield CheckResult(
            id="unexpected_tensor",
            level=Level.ERROR,
            title="tensors have no place in the model",
            expected="only tensors of the architecture that config.json names",
            rule=f"{_loader(drafter)}: raises for a name that it does not know",
            there=_some(extra),
            change="correct architectures or num_hidden_layers in config.json, or drop the tensors",
        )


def _is_foreign(drafter: DrafterFiles, name: str) -> bool:
    """Whether a file's name of a tensor is one that only engines' models of EAGLE-3 know."""
    return drafter.format.family is Family.EAGLE1 and "midlayer." in name


def _fc_width(drafter: DrafterFiles) -> Iterator[CheckResult]:
    fc = drafter.tensors.get(_FC)
    wide = fc_inputs(drafter)
    if fc is None or fc.shape == (drafter.hidden_size, wide):
        return
    if drafter.format.family is Family.EAGLE1:
        yield _eagle1_width(drafter, fc.shape)
        return
    there, width = fc.shape[-1], drafter.target_hidden_size
    named = drafter.aux_layers
    whole = there % width == 0 and fc.shape[0] == drafter.hidden_size
    yield CheckResult(
        id="fc_width",
        level=Level.ERROR,
        title="fc reads another number of captured states than the config names",
        expected=f"{drafter.aux_states} captured states x {width} = {wide} columns",
        rule=f"{_model(drafter)}; a CPU's matrix product reads past the end without an error",
        there=f"fc.weight {_words(fc.shape)}"
        + (f": {there // width} captured states; {AUX_LAYERS} is {named}" if whole else ""),
        change=f'name {there // width} layers in "{AUX_LAYERS}"'
        if whole
        else f'"target_hidden_size": {there // drafter.aux_states}'
        if there % drafter.aux_states == 0
        else "correct hidden_size and target_hidden_size",
    )


def _eagle1_width(drafter: DrafterFiles, there: tuple[int, ...]) -> CheckResult:
    return CheckResult(
        id="fc_width",
        level=Level.ERROR,
        title="fc does not read an embedding and one state",
        expected=f"fc.weight {_words((drafter.hidden_size, fc_inputs(drafter)))}",
        rule=f"{_model(drafter)}; a CPU's matrix product reads past the end without an error",
        there=f"fc.weight {_words(there)}",
        change="correct hidden_size, or architectures if this is no EAGLE-1 drafter",
    )


def _model(drafter: DrafterFiles) -> str:
    """Return the place of vLLM's model of this drafter."""
    return VLLM_EAGLE1_MODEL if drafter.format.family is Family.EAGLE1 else VLLM_MODEL


def _loader(drafter: DrafterFiles) -> str:
    """Return the place where vLLM loads the weights of this drafter."""
    return VLLM_EAGLE1_LOADER if drafter.format.family is Family.EAGLE1 else VLLM_LOADER


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape) or "scalar"
