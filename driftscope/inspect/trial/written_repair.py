"""Writes the config of a repaired drafter, never in place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from driftscope.boundary import strict_json
from driftscope.errors import UsageError
from driftscope.inspect.files.drafter_files import AUX_LAYERS, DrafterFiles
from driftscope.inspect.trial.trial_result import Change

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
