"""Pins the distributions to each other's version, which pyproject.toml cannot describe."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Fills in `dependencies`: those of the table, and `same-version` at this version."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dependencies to the metadata of the project."""
        ours = [f"{name}=={metadata['version']}" for name in self.config["same-version"]]
        metadata["dependencies"] = [*ours, *self.config.get("dependencies", [])]
