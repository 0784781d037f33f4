"""Names of the tensors of MiMo's MTP head: in the reference drafter, and in a checkpoint after the
prefix of the head, `model.mtp_layers.0.`."""

from __future__ import annotations

_OF_MIMO = {"fc.": "input_proj.", "midlayer.": "", "norm.": "final_layernorm."}
"""Prefix of a name in the reference drafter -> prefix in a checkpoint."""
_KEPT = ("token_layernorm.", "hidden_layernorm.")


def mimo_name(name: str) -> str:
    """Return the name in a checkpoint of a tensor of the reference drafter."""
    for prefix, of_mimo in _OF_MIMO.items():
        if name.startswith(prefix):
            return of_mimo + name.removeprefix(prefix)
    return name


def reference_name_of_mimo(name: str) -> str:
    """Return the name in the reference drafter of a tensor of a checkpoint."""
    if name.startswith(_KEPT):
        return name
    for prefix in ("fc.", "norm."):
        if name.startswith(_OF_MIMO[prefix]):
            return prefix + name.removeprefix(_OF_MIMO[prefix])
    return f"midlayer.{name}"
