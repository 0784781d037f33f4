"""Writes a repaired drafter: its config, or config and weights, never in place."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

from driftscope.boundary import strict_json
from driftscope.errors import UsageError
from driftscope.inspect.checks.expected_tensors import EMBEDDING, HEAD
from driftscope.inspect.files.checkpoint_format import Family
from driftscope.inspect.files.drafter_files import AUX_LAYERS, DrafterFiles
from driftscope.inspect.files.safetensors_file import StoredTensor
from driftscope.inspect.trial.trial_result import Change, Tried

_LAYER_FIELDS = ("rope_theta",)
"""Fields that the speculators format keeps in transformer_layer_config."""


def repaired_config(files: DrafterFiles, repair: Change) -> dict[str, Any]:
    """Return the content of config.json after the repair, in the format that it has."""
    fields: dict[str, Any] = copy.deepcopy(dict(files.raw))
    nested = fields.get("eagle_config")
    for name, value in repair.fields.items():
        if files.format.speculators and name in _LAYER_FIELDS:
            fields["transformer_layer_config"][name] = value
        elif name in (fields.get("rope_parameters") or ()):
            fields["rope_parameters"][name] = value
        else:
            fields[name] = value
        if isinstance(nested, dict) and (name in nested or name == AUX_LAYERS):
            nested[name] = value
    return fields


def write_config(files: DrafterFiles, repair: Change, path: Path) -> None:
    """Write the repaired config to a file. Raises UsageError for the drafter's own config."""
    if path.exists() and path.samefile(files.folder / "config.json"):
        raise UsageError(f"--write-config {path}: is the drafter's own; give another file")
    path.write_text(strict_json.dumps(repaired_config(files, repair), indent=1) + "\n", "utf-8")


def write_weights(files: DrafterFiles, best: Tried, folder: Path) -> None:
    """Write the repaired config and weights into a new folder. Raises UsageError if it exists."""
    from safetensors.torch import save_file

    from driftscope.inspect.reference.model import reference_name

    if folder.exists():
        raise UsageError(f"--write-weights {folder}: exists; give a new folder")
    folder.mkdir(parents=True)
    write_config(files, best.repair, folder / "config.json")
    state = best.state
    names = {reference_name(name): stored for name, stored in files.tensors.items()}
    dropped = {EMBEDDING} if best.repair.id == "targets_embedding" else set()
    if HEAD not in files.tensors or files.format.family is Family.EAGLE1:
        dropped.add(HEAD)  # the engine shares the target's, and refuses one of EAGLE-1
    tensors = {
        names[name].name if name in names else name: _as_stored(tensor, names.get(name))
        for name, tensor in state.items()
        if name not in dropped
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for file in files.folder.glob("tokenizer*"):
        shutil.copy(file, folder / file.name)


def _as_stored(tensor: Any, stored: StoredTensor | None) -> Any:
    """Return a tensor in the type in which it was stored; bfloat16 if it is new."""
    import torch

    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    if not tensor.is_floating_point():
        return tensor.contiguous()
    kind = types.get(stored.dtype, torch.float32) if stored else torch.bfloat16
    return tensor.to(kind).contiguous()
