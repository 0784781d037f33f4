"""Recognises in which format a drafter checkpoint was saved, and names its tensors alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from driftscope.errors import CheckpointError
from driftscope.inspect.files.mtp_heads import find_heads, heads_wanted


class Family(StrEnum):
    """Kind of decoder layer that a drafter has."""

    LLAMA = "Llama"
    QWEN3 = "Qwen3"
    MLA = "DeepSeek, latent attention"
    EAGLE1 = "Llama, of EAGLE-1"
    MTP = "of the target that it is part of"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """A recognised format."""

    name: str
    family: Family | None = None
    """Family of the decoder; None where only the checks that suit every checkpoint are made."""
    speculators: bool = False
    """Whether the config is in the format of the speculators library."""

    @property
    def checked(self) -> bool:
        """Whether config and weights are compared."""
        return self.family is not None


EAGLE3, EAGLE1 = "EAGLE-3", "EAGLE-1 or EAGLE-2"
_LLAMA3 = frozenset(
    {
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
    }
)
_ARCHITECTURES: Mapping[str, Family] = {
    **dict.fromkeys(_LLAMA3, Family.LLAMA),
    "Eagle3Qwen3ForCausalLM": Family.QWEN3,
    "Eagle3DeepseekV2ForCausalLM": Family.MLA,
    "Eagle3DeepseekV3ForCausalLM": Family.MLA,
}
"""Architectures that are checked whole. Source: the model registry of vLLM 0.32."""
EAGLE1_IN_SGLANG = "LlamaForCausalLMEagle"
_EAGLE1 = frozenset({"EagleLlamaForCausalLM", EAGLE1_IN_SGLANG})
"""Names of the architecture in vLLM and in SGLang."""
_OTHERS = (
    ("LlamaForCausalLMEagle4", "EAGLE-4"),
    ("DFlash", "DFlash"),
    ("DSpark", "DSpark"),
    ("Peagle", "P-EAGLE"),
    ("PEagle", "P-EAGLE"),
    ("Medusa", "Medusa"),
    ("MTP", "MTP head"),
    ("Eagle", EAGLE1),
)
"""Parts of an architecture's name, and the format that they mean; the first that matches counts."""
_SPECULATORS = {"llama": Family.LLAMA, "qwen3": Family.QWEN3}


def recognise(config: Mapping[str, Any], names: Collection[str]) -> CheckpointFormat:
    """Return the format of a checkpoint with this config and these tensors.

    Raises CheckpointError for one that is no drafter of a known kind.
    """
    kind = config.get("speculators_model_type")
    if kind is not None:
        return _speculators(config, str(kind))
    listed = config.get("architectures") or ()
    architectures = [str(each) for each in listed] if isinstance(listed, list | tuple) else []
    for architecture in architectures:
        if architecture in _ARCHITECTURES:
            return CheckpointFormat(name=EAGLE3, family=_ARCHITECTURES[architecture])
        if architecture in _EAGLE1:
            return CheckpointFormat(name=EAGLE1, family=Family.EAGLE1)
        for part, name in _OTHERS:
            if part in architecture:
                return CheckpointFormat(name=name)
    return _by_content(config, set(names), architectures)


def _speculators(config: Mapping[str, Any], kind: str) -> CheckpointFormat:
    layer = config.get("transformer_layer_config")
    model = layer.get("model_type") if isinstance(layer, dict) else None
    if kind != "eagle3":
        return CheckpointFormat(name=f"speculators format, {kind}", speculators=True)
    if not isinstance(layer, dict) or model not in _SPECULATORS:
        raise CheckpointError(
            f"config.json: transformer_layer_config.model_type is {model!r}; vLLM serves "
            f"{' and '.join(_SPECULATORS)} in the speculators format"
        )
    return CheckpointFormat(
        name=f"{EAGLE3}, speculators format", family=_SPECULATORS[str(model)], speculators=True
    )


def _by_content(
    config: Mapping[str, Any], names: set[str], architectures: list[str]
) -> CheckpointFormat:
    """Recognise a checkpoint whose architecture says nothing, such as those of the EAGLE
    repository."""
    if any(name.startswith(("midlayer.", "model.midlayer.")) for name in names):
        latent = config.get("kv_lora_rank") is not None
        return CheckpointFormat(name=EAGLE3, family=Family.MLA if latent else Family.LLAMA)
    if "medusa_num_heads" in config:
        return CheckpointFormat(name="Medusa")
    if heads_wanted(config) or find_heads(config, names):
        return CheckpointFormat(name="target with MTP heads", family=Family.MTP)
    if "fc.weight" in names and any(name.startswith("layers.0.") for name in names):
        return CheckpointFormat(name=EAGLE1, family=_family_of_eagle1(names))
    named = ", ".join(architectures) or "none"
    raise CheckpointError(
        f"config.json: architectures is {named}, which is no drafter that inspect knows; give the "
        "drafter's folder first and the target's with --target"
    )


def _family_of_eagle1(names: set[str]) -> Family | None:
    """Return the family of an EAGLE-1 drafter that names its target's architecture; None for one
    whose attention is not that of Llama."""
    others = ("q_norm.weight", "kv_a_proj_with_mqa.weight", "q_proj.bias")
    return None if any(name.endswith(others) for name in names) else Family.EAGLE1


def common_name(name: str) -> str:
    """Return a tensor's name without the prefixes by which formats differ: `model.` is dropped and
    `midlayer.` is `layers.0.`."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name
