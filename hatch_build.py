"""What pyproject.toml cannot describe, run by hatchling when a distribution is built.

All distributions have one version, and each depends on the exact version of the others. The wheel
of `driftscope-probe` contains the core, which lies outside its folder.
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


class WithTheCore(BuildHookInterface[Any]):
    """Adds the package `driftscope` to the probe's wheel.

    An editable install needs no copy, which would hide the checkout: its path file names that.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder to what the wheel includes."""
        if version != "editable":
            core = Path(self.root).parent / "driftscope"
            build_data["force_include"][str(core)] = "driftscope"
