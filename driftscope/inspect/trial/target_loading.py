"""Loads a target through transformers: on one device, or where accelerate finds room for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CPU, GPU = "cpu", "cuda"
_MIMO = "MiMoForCausalLM"


def load_model(
    folder: Path, device: str, *, pickled: bool = False, device_map: Any | None = None
) -> Any:
    """Return the model in the type in which a GPU serves it, or in float32 on a CPU.

    Raises whatever transformers raises. `device_map` replaces the place that follows from `device`.
    """
    placed = {"device_map": device_map} if device_map else placement(device)
    model: Any = _class_of(folder).from_pretrained(
        folder,
        dtype=torch.bfloat16 if device == GPU else torch.float32,
        local_files_only=True,
        use_safetensors=not pickled,
        weights_only=True,
        **placed,
    )
    return model if placed else model.to(device)


def _class_of(folder: Path) -> Any:
    """Return the class of transformers that loads a target. MiMo's layers are those of Qwen2, whose
    class leaves its heads for multi-token prediction out."""
    import transformers

    fields = transformers.PretrainedConfig.get_config_dict(folder, local_files_only=True)[0]
    named = fields.get("architectures") or ()
    return transformers.Qwen2ForCausalLM if _MIMO in named else transformers.AutoModelForCausalLM


def placement(device: str, *, accelerate: bool | None = None) -> Mapping[str, Any]:
    """Return the arguments that place a model: with a GPU and accelerate, layers that do not fit
    into its memory stay in that of the host."""
    if accelerate is None:
        accelerate = importlib.util.find_spec("accelerate") is not None
    return {"device_map": "auto"} if device == GPU and accelerate else {}


def weight_of(module: nn.Module) -> Tensor:
    """Return the weight of a module, also where accelerate keeps it elsewhere until it is used."""
    weight: Any = module.weight
    if not weight.is_meta:
        held: Tensor = weight.detach()
        return held
    from accelerate.utils import align_module_device

    with align_module_device(module, torch.device(CPU)):
        fetched: Tensor = module.weight.detach().clone()  # type: ignore[operator]
        return fetched
