"""Pin the oldest base dependencies that pyproject.toml allows, one requirement per line."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def oldest_of(requirements: Iterable[str]) -> list[str]:
    """Return each `name>=version` as `name==version`; raises ValueError for any other form."""
    return [_oldest(requirement) for requirement in requirements]


def _oldest(requirement: str) -> str:
    name, found, version = requirement.partition(">=")
    if not found or not version or set(version) - set("0123456789."):
        raise ValueError(
            f"pyproject.toml: {requirement!r} has no lower bound alone; give name>=1.2"
        )
    return f"{name}=={version}"


def main() -> None:
    """Print the pins."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    sys.stdout.write("\n".join(oldest_of(project["dependencies"])) + "\n")


if __name__ == "__main__":
    main()
