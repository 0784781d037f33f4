"""Steps that pyproject.toml cannot describe, run by hatchling when a distribution is built.

All distributions have one version, and each depends on the exact version of the others. The wheel
of `driftscope-probe` contains parts of the core, which lie outside its folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Fills in `dependencies`: those of the table, and `same-version` at this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dependencies to the metadata of the project."""
        ours = [f"{name}=={metadata['version']}" for name in self.config["same-version"]]
        metadata["dependencies"] = [*ours, *self.config.get("dependencies", [])]


class PartsOfTheCore(BuildHookInterface[Any]):
    """Adds files of the checkout outside the project's folder to its wheel, under their path.

    An editable install needs none: its path file names the checkout.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add every path of the list `parts`; raises FileNotFoundError if one does not exist."""
        if version == "editable":
            return
        checkout = Path(self.root).parent
        for part in self.config["parts"]:
            if not (checkout / part).exists():
                raise FileNotFoundError(f"{checkout / part}: named in probes/pyproject.toml")
            build_data["force_include"][str(checkout / part)] = part
